//! Caches the bytes of the last reading: each form is rendered once a reading, and all its scrapes get the same bytes.
//!
//! Metrics of the agent itself have their values at the first scrape of the reading in that format. Bytes of an older
//! reading are dropped, and all bytes after two seconds, since a reading is returned for one second.

use std::{
    fmt,
    io::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use axum::body::Bytes;
use flate2::{Compression, write::GzEncoder};

use crate::export::prometheus::Format;

/// The lifetime of cached bytes; longer than the time for which a reading is returned.
const KEPT_FOR: Duration = Duration::from_secs(2);

/// The `Content-Encoding` of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
}

/// The properties that differ between renderings of one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) format: Format,
    pub(super) encoding: Encoding,
    /// True if new series start with zero.
    pub(super) zero_first: bool,
}

/// The inputs of a rendering: the number of the reading, whether the last reload succeeded, and when the configuration
/// was last read.
type Made = (u64, (bool, SystemTime));

/// The renderings of the last reading. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Rendered(Arc<Mutex<Option<Renderings>>>);

#[derive(Debug)]
struct Renderings {
    of: Made,
    since: Instant,
    bodies: Vec<(Form, Bytes)>,
}

impl Encoding {
    /// Returns gzip if the `Accept-Encoding` header asks for it.
    pub(super) fn negotiate(accept: &str) -> Self {
        let wants_gzip = accept.split(',').any(|coding| {
            let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
            let quality = parameters.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse);
            name.trim().eq_ignore_ascii_case("gzip") && quality.is_ok_and(|quality: f32| quality > 0.0)
        });
        if wants_gzip { Self::Gzip } else { Self::Identity }
    }
}

impl Rendered {
    /// Returns the bytes of a reading; `render` makes them if there are none yet.
    ///
    /// # Errors
    ///
    /// The error of `render`.
    pub(super) fn get(
        &self,
        of: Made,
        form: Form,
        render: impl FnOnce() -> Result<Vec<u8>, fmt::Error>,
    ) -> Result<Bytes, fmt::Error> {
        // The lock is held while the metrics are rendered: other scrapes wait for the bytes.
        let mut known = self.lock();
        if known.as_ref().is_none_or(|renderings| renderings.of != of) {
            *known = Some(Renderings { of, since: Instant::now(), bodies: Vec::new() });
        }
        let Some(Renderings { bodies, .. }) = &mut *known else { return Err(fmt::Error) };
        let find = |bodies: &[(Form, Bytes)], encoding: Encoding| {
            bodies.iter().find(|(of, _)| *of == Form { encoding, ..form }).map(|(_, bytes)| bytes.clone())
        };
        if let Some(bytes) = find(bodies, form.encoding) {
            return Ok(bytes);
        }
        let bytes = match (form.encoding, find(bodies, Encoding::Identity)) {
            (Encoding::Identity, _) => render()?.into(),
            (Encoding::Gzip, Some(plain)) => gzip(&plain)?,
            (Encoding::Gzip, None) => gzip(&render()?)?,
        };
        bodies.push((form, bytes.clone()));
        Ok(bytes)
    }

    /// Drops bytes that are too old to be sent.
    pub(super) fn drop_old(&self) {
        let mut known = self.lock();
        if known.as_ref().is_some_and(|renderings| renderings.since.elapsed() > KEPT_FOR) {
            *known = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Renderings>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compresses at the fastest level, which takes a third of the time of the default level. Repeated names compress well
/// at any level.
pub(super) fn gzip(bytes: &[u8]) -> Result<Bytes, fmt::Error> {
    // Writing to a `Vec` does not fail.
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    encoder.write_all(bytes).map_err(|_error| fmt::Error)?;
    encoder.finish().map(Bytes::from).map_err(|_error| fmt::Error)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, io::Read as _};

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn each_format_and_encoding_is_rendered_once_a_reading() {
        let (rendered, times) = (Rendered::default(), Cell::new(0));
        let get = |of: Made, format, encoding| {
            let render = || {
                times.set(times.get() + 1);
                Ok(format!("{} {format:?}", of.0).into_bytes())
            };
            rendered.get(of, Form { format, encoding, zero_first: false }, render).unwrap()
        };
        let taken = (true, SystemTime::UNIX_EPOCH);
        for _ in 0..3 {
            assert_eq!(get((1, taken), Format::Text, Encoding::Identity), "1 Text");
            assert_eq!(get((1, taken), Format::Protobuf, Encoding::Identity), "1 Protobuf");
            let zipped = get((1, taken), Format::Text, Encoding::Gzip);
            let mut text = String::new();
            GzDecoder::new(&*zipped).read_to_string(&mut text).unwrap();
            assert_eq!(text, "1 Text");
        }
        assert_eq!(times.get(), 2, "gzip is of the bytes that were there");
        assert_eq!(get((2, taken), Format::Text, Encoding::Identity), "2 Text");
        assert_eq!(rendered.lock().as_ref().unwrap().bodies.len(), 1, "bytes of an older reading");
        get((2, (false, SystemTime::UNIX_EPOCH)), Format::Text, Encoding::Identity);
        assert_eq!(times.get(), 4, "the configuration was read again");
        rendered.drop_old();
        assert!(rendered.lock().is_some(), "it is new");
    }

    #[test]
    fn gzip_is_for_who_asks_for_it() {
        for (accept, encoding) in [
            ("", Encoding::Identity),
            ("gzip", Encoding::Gzip),
            ("br;q=1.0, GZIP;q=0.5", Encoding::Gzip),
            ("gzip;q=0", Encoding::Identity),
            ("deflate, identity", Encoding::Identity),
        ] {
            assert_eq!(Encoding::negotiate(accept), encoding, "{accept}");
        }
    }
}
