//! The parts of a request that the agent parses itself: arguments, and accepted formats. Any client on the network may
//! send a request.
//!
//! The first line is the address, the second the `Accept` header.

use http::Uri;
use podperf::{
    export::prometheus,
    http::pages::profile::{LONGEST_ID, Query, address, file_name},
    recording::{LONGEST, Selector, Wanted},
};

pub(crate) fn check(text: &str) {
    let (line, accept) = text.split_once('\n').unwrap_or((text, ""));
    let format = prometheus::Format::negotiate(accept);
    // A client that gets this format must also accept it.
    assert_eq!(prometheus::Format::negotiate(format.content_type()), format);

    let Ok(uri) = line.parse::<Uri>() else { return };
    let query = Query::of(&uri);
    let (Wanted { selector, side, duration, .. }, format, id) = match query.wanted() {
        Ok(wanted) => wanted,
        Err(message) => {
            assert!(message.starts_with("bad "), "{message}");
            return;
        }
    };
    assert!(duration <= LONGEST && id.is_none_or(|id| id.len() <= LONGEST_ID));
    // A link to a selector selects the same again.
    let link = address(&selector, side, Some(format));
    let query = Query::of(&link.parse().unwrap());
    let (again, as_format, _) = query.wanted().unwrap();
    assert_eq!((&again.selector, again.side, as_format), (&selector, side, format));
    if selector != Selector::All {
        assert_eq!(selector.to_string().parse::<Selector>().as_ref(), Ok(&selector));
    }
    let name = file_name(&selector.to_string(), side, format);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    assert!(name.chars().all(is_plain) && name.starts_with("podperf-"), "{name}");
}
