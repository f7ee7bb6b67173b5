//! The file's form: a line with version, checksum and length, then JSON. Pure.

use thiserror::Error;

use super::State;

/// Version of the file. Raise it when a field changes its meaning.
const VERSION: u32 = 1;
const MAGIC: &str = "podperf-kept";

/// Reason why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The first line is not podperf's.
    #[error("not a file of podperf's")]
    Foreign,
    /// The file has another version.
    #[error("of version {0}, and this agent reads {VERSION}")]
    Version(u32),
    /// The file is cut short or changed.
    #[error("damaged")]
    Damaged,
}

/// Returns the content of the file for a checkpoint.
///
/// # Errors
///
/// Never fails for this agent's checkpoint: all keys of its maps are strings.
pub fn encode(state: &State) -> serde_json::Result<Vec<u8>> {
    let body = serde_json::to_vec(state)?;
    let mut text = format!("{MAGIC} {VERSION} {:08x} {}\n", crc32fast::hash(&body), body.len()).into_bytes();
    text.extend(body);
    Ok(text)
}

/// Parses the content of a file.
///
/// # Errors
///
/// Fails if a single bit has changed since the write, or if another version wrote the file.
pub fn decode(text: &[u8]) -> Result<State, FormatError> {
    let end = text.iter().position(|byte| *byte == b'\n').ok_or(FormatError::Foreign)?;
    let (head, body) = (&text[..end], &text[end + 1..]);
    let head = std::str::from_utf8(head).ok().ok_or(FormatError::Foreign)?;
    let [MAGIC, version, checksum, length] = head.split(' ').collect::<Vec<_>>()[..] else {
        return Err(FormatError::Foreign);
    };
    match version.parse() {
        Ok(VERSION) => {}
        Ok(other) => return Err(FormatError::Version(other)),
        Err(_) => return Err(FormatError::Foreign),
    }
    let whole = *length == body.len().to_string() && *checksum == format!("{:08x}", crc32fast::hash(body));
    if !whole {
        return Err(FormatError::Damaged);
    }
    serde_json::from_slice(body).ok().ok_or(FormatError::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attribution::{
            Row,
            saved_ledger::{SavedAccount, SavedLedger, SavedWaiting},
        },
        cgroups::saved_cgroup::SavedCgroup,
        pods::{Pod, saved_pods::SavedPod},
    };

    fn example() -> State {
        let node =
            SavedCgroup { id: 7, path: "/a\n\"b".into(), born_ns: 1, first_of_pod: true, died_ns: Some(u64::MAX) };
        let row = Row::Container { namespace: "shop".into(), pod: "web".into(), container: "app".into() };
        let account = SavedAccount {
            row,
            usage: vec![1, 2, u128::from(u64::MAX) + 1],
            started_unix_ns: Some(4),
            pod: Some(0),
            container: None,
            ended: Some((3, 1)),
            hidden: true,
            revealed: Some(vec![0, 3]),
        };
        State {
            identity: "boot 4".into(),
            posted: vec![(7, vec![0, 5])],
            shown: [("idle_ns".to_owned(), 5)].into(),
            tree: vec![node.clone()],
            pods: vec![Pod::example()],
            reported: vec![SavedPod { pod: 0, deleted_ns: None }],
            ledger: SavedLedger {
                accounts: vec![account],
                waiting: vec![SavedWaiting { cgroup: 9, usage: vec![], since_ns: 2, place: Some(node) }],
                ..SavedLedger::default()
            },
            ..State::default()
        }
    }

    #[test]
    fn a_saved_state_comes_back() {
        assert_eq!(decode(&encode(&example()).unwrap()).as_ref(), Ok(&example()));
    }

    #[test]
    fn a_file_cut_at_any_byte_is_not_used() {
        let text = encode(&example()).unwrap();
        for length in 0..text.len() {
            assert!(decode(&text[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn a_file_with_any_bit_flipped_is_not_used() {
        let text = encode(&example()).unwrap();
        for at in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            assert!(decode(&flipped).is_err(), "bit {at}");
        }
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let text = String::from_utf8(encode(&example()).unwrap()).unwrap();
        let newer = text.replacen("podperf-kept 1 ", "podperf-kept 2 ", 1);
        assert_eq!(decode(newer.as_bytes()), Err(FormatError::Version(2)));
        assert_eq!(decode(b"nonsense\n"), Err(FormatError::Foreign));
    }
}
