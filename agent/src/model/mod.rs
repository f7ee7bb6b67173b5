//! Types that all other modules share: ids, states of waiting threads, kinds of locks, sums of usage, sums by label,
//! words and settings of sensors, hard interrupts by name, recorded system calls and the names of calls, functions to
//! measure, work items, features, modes, and states of parts.
//! Pure, except for [`random`] and [`functions`].

pub mod call_names;
pub mod duration;
pub mod facts;
pub mod feature;
pub mod functions;
pub mod hard_interrupts;
pub mod ids;
pub mod labelled;
pub mod lock;
pub mod mode;
pub mod random;
pub mod recorded_calls;
pub mod sensor_words;
pub mod sensors;
pub mod settings;
pub mod slot;
pub mod status;
pub mod usage;
pub mod wait;
pub mod works;
