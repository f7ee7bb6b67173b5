//! Types that all other modules share: ids, states of waiting threads, kinds of locks, sums of usage, sums by label,
//! words of sensors, features, modes, and states of parts.
//! Pure, except for [`random`].

pub mod duration;
pub mod facts;
pub mod feature;
pub mod ids;
pub mod labelled;
pub mod lock;
pub mod mode;
pub mod random;
pub mod sensors;
pub mod slot;
pub mod status;
pub mod usage;
pub mod wait;
