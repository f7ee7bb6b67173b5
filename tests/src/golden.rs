//! Files that are generated from code and kept. A test compares each with its fresh text; `make golden` writes all of
//! them again.

use std::{env, fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// Returns `true` if the tests are to write the files.
#[must_use]
pub fn is_written() -> bool {
    env::var_os("PODPERF_WRITE_GOLDEN").is_some()
}

/// Compares a file with its fresh text.
pub fn expect(path: &Path, fresh: &str) -> Result<()> {
    if is_written() {
        fs::write(path, fresh)?;
    }
    let kept = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    ensure!(kept == fresh, "`{}` is not as generated (`make golden`, and look at the difference)", path.display());
    Ok(())
}
