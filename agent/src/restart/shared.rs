//! Texts that are shared, as serde reads and writes them: `#[serde(with = "crate::restart::shared")]`.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

/// What has shared texts in it.
pub trait Shared: Sized {
    /// The same with texts of its own.
    type Plain: Serialize + DeserializeOwned;
    /// As it is written.
    fn plain(&self) -> Self::Plain;
    /// As it was read.
    fn share(plain: Self::Plain) -> Self;
}

/// Writes it.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<T: Shared, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.plain().serialize(serializer)
}

/// Reads it.
///
/// # Errors
///
/// Those of the deserializer.
pub fn deserialize<'de, T: Shared, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::Plain::deserialize(deserializer).map(T::share)
}

impl Shared for Arc<str> {
    type Plain = String;

    fn plain(&self) -> String {
        self.to_string()
    }

    fn share(plain: String) -> Self {
        plain.into()
    }
}

impl<T: Shared> Shared for Option<T> {
    type Plain = Option<T::Plain>;

    fn plain(&self) -> Self::Plain {
        self.as_ref().map(T::plain)
    }

    fn share(plain: Self::Plain) -> Self {
        plain.map(T::share)
    }
}

impl<T: Shared> Shared for Vec<(T, T)> {
    type Plain = Vec<(T::Plain, T::Plain)>;

    fn plain(&self) -> Self::Plain {
        self.iter().map(|(a, b)| (a.plain(), b.plain())).collect()
    }

    fn share(plain: Self::Plain) -> Self {
        plain.into_iter().map(|(a, b)| (T::share(a), T::share(b))).collect()
    }
}
