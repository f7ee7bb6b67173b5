//! The words in which the agent tells people how to change its configuration: keys of its file, or values of the chart
//! that runs it. Pure, except for the look at the environment.

/// The variable that the chart sets.
const VARIABLE: &str = "PODPERF_RUN_BY";
/// The value that the chart gives it.
const CHART: &str = "chart";

/// The thing that runs the agent, and whose settings people change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// Anything with a configuration file.
    File,
    /// The Helm chart.
    Chart,
}

impl Runner {
    /// Returns the runner of this process.
    #[must_use]
    pub fn find() -> Self {
        if std::env::var(VARIABLE).is_ok_and(|by| by == CHART) { Self::Chart } else { Self::File }
    }

    /// Returns the way to take stacks.
    #[must_use]
    pub const fn take_stacks(self) -> &'static str {
        match self {
            Self::File => "set `stacks.enabled: true` and restart the agent",
            Self::Chart => "set the chart's `mode: reasons`, or `mode: profiles` with `http.readers` for user frames",
        }
    }

    /// Returns the way to take user frames.
    #[must_use]
    pub const fn take_user_frames(self) -> &'static str {
        match self {
            Self::File => "delete `stacks.unwind: none` and restart the agent",
            Self::Chart => "set the chart's `mode: profiles` and `http.readers`",
        }
    }

    /// Returns the way to find waits for locks.
    #[must_use]
    pub const fn find_locks(self) -> &'static str {
        match self {
            Self::File => "set `sensors.locks.enabled: true` and restart the agent",
            Self::Chart => "set the chart's `config.sensors.locks.enabled: true`",
        }
    }

    /// Returns the way to measure functions.
    #[must_use]
    pub const fn measure_functions(self) -> &'static str {
        match self {
            Self::File => "set `sensors.functions.enabled: true` and restart the agent",
            Self::Chart => "set the chart's `config.sensors.functions.enabled: true`",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_profiles_of_the_chart_is_advised_with_its_readers() {
        for advice in [Runner::Chart.take_stacks(), Runner::Chart.take_user_frames()] {
            assert!(advice.contains("`mode: profiles`") && advice.contains("`http.readers`"), "{advice}");
        }
    }
}
