//! The words of all sensors for one row, such as that of a cgroup. Pure.
//!
//! A sensor may have hundreds of words, and most sensors are off or have not seen the cgroup. So a sensor's words take
//! memory only if one of them is not zero.

use std::iter::repeat_n;

use super::sensors::{self, ALL, Sensor};

/// The rows of sensors by their places in [`ALL`]; empty while all words of a sensor are zero. `N` is the type of a
/// word: `u64` in the kernel, `u128` in sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SensorWords<N>(Vec<Vec<N>>);

impl<N: Copy + Default + PartialEq> SensorWords<N> {
    /// Returns the words that a list as [`SensorWords::list`] has. The list may end early.
    #[must_use]
    pub fn of_list(list: &[N]) -> Self {
        let mut this = Self::default();
        for (place, (sensor, first)) in sensors::all().enumerate() {
            let row = list.get(first..).unwrap_or_default();
            this.set(place, &row[..row.len().min(sensor.words)]);
        }
        this
    }

    /// Returns the words of all sensors, one sensor after the other.
    pub fn list(&self) -> impl Iterator<Item = N> {
        (0..ALL.len()).flat_map(move |place| self.padded(place))
    }

    /// Returns the words of the sensor at a place.
    pub fn padded(&self, place: usize) -> impl Iterator<Item = N> {
        let row = self.0.get(place).map(Vec::as_slice).unwrap_or_default();
        row.iter().copied().chain(repeat_n(N::default(), ALL[place].words - row.len()))
    }

    /// Returns the words of a sensor; `None` if all are zero.
    #[must_use]
    pub fn of(&self, sensor: &Sensor) -> Option<&[N]> {
        self.0.get(sensors::place_of(sensor)).map(Vec::as_slice).filter(|row| !row.is_empty())
    }

    /// Returns the rows of sensors whose words are not all zero, with the places of the sensors.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &[N])> {
        self.0.iter().map(Vec::as_slice).enumerate().filter(|(_, row)| !row.is_empty())
    }

    /// Returns the row of the sensor at a place, to write a word that is not zero.
    pub fn row_mut(&mut self, place: usize) -> &mut [N] {
        if self.0.len() <= place {
            self.0.resize_with(place + 1, Vec::new);
        }
        let row = &mut self.0[place];
        if row.is_empty() {
            *row = vec![N::default(); ALL[place].words];
        }
        row
    }

    /// Writes the row of the sensor at a place, unless all of its words are zero.
    pub fn set(&mut self, place: usize, row: &[N]) {
        if row.iter().any(|word| *word != N::default()) {
            self.row_mut(place).iter_mut().zip(row).for_each(|(to, word)| *to = *word);
        }
    }
}

impl SensorWords<u128> {
    /// Adds other words to these.
    pub fn add(&mut self, other: &Self) {
        for (place, row) in other.rows() {
            self.row_mut(place).iter_mut().zip(row).for_each(|(sum, by)| *sum += by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensor_without_counts_takes_no_memory() {
        let last = ALL.len() - 1;
        let mut words = SensorWords::<u128>::default();
        words.row_mut(last)[1] = 5;
        let mut sum = SensorWords::<u128>::default();
        sum.add(&words);
        sum.add(&SensorWords::of_list(&vec![0; sensors::words()]));
        assert_eq!(sum, words);
        assert_eq!(sum.rows().map(|(place, row)| (place, row.len())).collect::<Vec<_>>(), [(last, ALL[last].words)]);
        assert_eq!((sum.of(ALL[last]).map(|row| row[1]), sum.of(ALL[0])), (Some(5), None));
        assert_eq!(SensorWords::of_list(&[0_u64; 3]), SensorWords::default());
    }

    #[test]
    fn a_list_that_ends_early_has_zeros_at_its_end() {
        let list: Vec<u64> = (1..=sensors::words() as u64).collect();
        assert_eq!(SensorWords::of_list(&list).list().collect::<Vec<_>>(), list);
        let mut early = list.clone();
        early[ALL[0].words + 1..].fill(0);
        assert_eq!(SensorWords::of_list(&list[..=ALL[0].words]).list().collect::<Vec<_>>(), early);
    }
}
