//! Functions whose calls the sensor `functions` measures, and the description of this sensor with their names as
//! labels. Pure, except for the memory of descriptions.

use std::sync::{Mutex, PoisonError};

use podperf_ebpf::abi;

use super::sensors::{self, Family, Sensor, Series};

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
