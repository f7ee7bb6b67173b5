//! Functions whose calls the sensor `functions` measures, and the description of this sensor with their names as
//! labels. Pure, except for the memory of descriptions.

use std::sync::{Mutex, PoisonError};

use podperf_ebpf::abi;

use super::sensors::{self, Family, Sensor, Series, Words};

/// The name of the sensor.
pub const SENSOR: &str = "functions";

/// The most functions of a configuration.
pub const MOST: usize = abi::PODPERF_FUNCTIONS as usize;

/// A function of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name in metrics and messages.
    pub name: String,
    /// The place of its code.
    pub code: Code,
}

/// The place of a function's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// The kernel's function of this name.
    Kernel(String),
    /// A function of a program or library.
    Program {
        /// The path of the file, as the processes see it that run it.
        binary: String,
        /// Its name in the symbol table of the file.
        symbol: String,
    },
}

/// Functions that return twice: the second return would end the program.
const TWICE: [&str; 6] = ["setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "getcontext", "swapcontext"];
/// The longest text of a function in a recording, in bytes: `PATH_MAX` of the kernel, and a long symbol.
const LONGEST: usize = 8192;

impl Code {
    /// Parses the text of a recording: the name of a kernel's function, or `PATH:SYMBOL` for that of a program.
    ///
    /// # Errors
    ///
    /// When the text is neither: the reason, with an example.
    pub fn of_text(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("a function of {} bytes (at most {LONGEST})", text.len()));
        }
        let in_kernel = |of: char| of.is_ascii_alphanumeric() || matches!(of, '_' | '.' | '$');
        if !text.is_empty() && text.chars().all(in_kernel) {
            return Ok(Self::Kernel(text.to_owned()));
        }
        match text.rsplit_once(':').filter(|(binary, symbol)| binary.starts_with('/') && !symbol.is_empty()) {
            Some((_, symbol)) if returns_twice(symbol) => Err(twice(symbol)),
            Some((binary, symbol)) if !text.contains('\0') => {
                Ok(Self::Program { binary: binary.to_owned(), symbol: symbol.to_owned() })
            }
            _ => Err(format!(
                "bad function `{text}` (a function of the kernel as `vfs_read`, or `/PATH/OF/FILE:SYMBOL` as the \
                 processes see the file)"
            )),
        }
    }
}

/// Returns whether a function of a program returns twice.
#[must_use]
pub fn returns_twice(symbol: &str) -> bool {
    TWICE.contains(&symbol)
}

/// Returns the refusal of a function that returns twice.
#[must_use]
pub fn twice(symbol: &str) -> String {
    format!("`{symbol}` returns twice, and a probe of its return would end the program")
}

/// Returns the words of a function in the rows of the sensor, by its number; `None` if there are fewer.
#[must_use]
pub fn words(function: usize) -> Option<Words> {
    Some(sensors::named(SENSOR)?.families.first()?.series.get(function)?.words)
}

/// Returns the description of the sensor whose series have these labels, in the order of the row. Series without a name
/// are left out. A list is described once, since descriptions live as long as the process.
#[must_use]
pub fn described(names: &[String]) -> Option<&'static Sensor> {
    static DESCRIBED: Mutex<Vec<&'static Sensor>> = Mutex::new(Vec::new());
    let mut described = DESCRIBED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same = |sensor: &&'static Sensor| labels(sensor).eq(names.iter().map(String::as_str));
    if let Some(sensor) = described.iter().copied().find(is_same) {
        return Some(sensor);
    }
    let own = sensors::named(SENSOR)?;
    let families = own.families.iter().map(|family| {
        let series = names.iter().zip(family.series);
        let series = series.map(|(name, series)| Series { labels: [name.clone().leak(), ""], words: series.words });
        Family { series: series.collect::<Vec<_>>().leak(), ..*family }
    });
    let sensor: &'static Sensor = Box::leak(Box::new(Sensor { families: families.collect::<Vec<_>>().leak(), ..*own }));
    described.push(sensor);
    Some(sensor)
}

/// Returns the description of the sensor with the labels that a checkpoint has for its words.
#[must_use]
pub fn saved(labels: &[String]) -> Option<&'static Sensor> {
    let begin = format!("{SENSOR} {} ", sensors::named(SENSOR)?.families.first()?.name);
    let name = |label: &String| Some(label.strip_prefix(&begin)?.strip_suffix(" 0")?.to_owned());
    let names: Vec<String> = labels.iter().filter_map(name).collect();
    described(&names)
}

fn labels(sensor: &'static Sensor) -> impl Iterator<Item = &'static str> {
    sensor.families.iter().flat_map(|family| family.series).map(|series| series.labels[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn series_have_the_names_of_the_configuration_and_the_words_of_the_row() {
        let sensor = described(&names(&["read", "write"])).unwrap();
        assert_eq!(labels(sensor).collect::<Vec<_>>(), ["read", "write"]);
        let own = sensors::named(SENSOR).unwrap();
        assert_eq!(labels(own).count(), MOST);
        let words = |sensor: &'static Sensor, at: usize| sensor.families[0].series[at].words;
        assert_eq!((words(sensor, 0), words(sensor, 1)), (words(own, 0), words(own, 1)));
        assert!(std::ptr::eq(sensor, described(&names(&["read", "write"])).unwrap()), "described once");
        assert!(described(&[]).unwrap().families[0].series.is_empty());
    }

    #[test]
    fn a_recording_names_a_function_of_the_kernel_or_of_a_file() {
        assert_eq!(Code::of_text("vfs_read"), Ok(Code::Kernel("vfs_read".into())));
        let program = |binary: &str, symbol: &str| Ok(Code::Program { binary: binary.into(), symbol: symbol.into() });
        assert_eq!(Code::of_text("/usr/bin/a:main"), program("/usr/bin/a", "main"));
        assert_eq!(Code::of_text("/odd:name/a:_ZN1a1bEv"), program("/odd:name/a", "_ZN1a1bEv"));
        for (text, says) in [
            ("", "bad function ``"),
            ("a b", "bad function `a b`"),
            ("/usr/bin/a", "bad function"),
            ("/usr/bin/a:", "bad function"),
            ("bin/a:main", "bad function"),
            ("/usr/bin/a:setjmp", "returns twice"),
            (&"x".repeat(LONGEST + 1), "at most 8192"),
        ] {
            assert!(Code::of_text(text).unwrap_err().contains(says), "{text}");
        }
    }

    #[test]
    fn words_are_saved_under_the_names_of_the_functions() {
        let before = sensors::saved_as(&[described(&names(&["read", "write"])).unwrap()]);
        let after = sensors::saved_as(&[described(&names(&["write"])).unwrap()]);
        let at = |labels: &[String], label: &str| labels.iter().position(|of| of == label);
        let (_, first) = sensors::all().find(|(sensor, _)| sensor.names.sensor == SENSOR).unwrap();
        let write = "functions function_latency write 0";
        assert_eq!(at(&after, write), Some(first + 1));
        assert!(at(&before, write) > at(&after, write), "the second histogram");
        let read = "functions function_latency read 0";
        assert!(at(&before, read).is_some() && at(&after, read).is_none());
        assert!(std::ptr::eq(saved(&before).unwrap(), described(&names(&["read", "write"])).unwrap()));
        assert!(saved(&[]).unwrap().families[0].series.is_empty());
    }
}
