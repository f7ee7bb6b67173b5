//! Reads files in which others choose some of the bytes: names of programs, of cgroups, of CPUs. These bytes need not
//! be UTF-8, and `fs::read_to_string` would reject the whole file for one of them.

use std::{fs, io, path::Path};

/// Returns the text of a file. Each byte sequence that is not UTF-8 becomes U+FFFD.
///
/// # Errors
///
/// When the file cannot be read.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_bytes_hides_no_other_field() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stat");
        fs::write(&path, b"7 (caf\xe9) S 1").unwrap();
        assert_eq!(read_text(&path).unwrap(), "7 (caf\u{fffd}) S 1");
        read_text(directory.path().join("none")).unwrap_err();
    }
}
