//! `functions:`, the functions whose calls the sensor of this name measures.

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, Unwinding, sensors};
use crate::model::{
    functions::{Code, Function, MOST, SENSOR, returns_twice, twice},
    sensors::named,
};

/// The longest name: it is a label of metrics.
const LONGEST_NAME: usize = 64;

/// One of `functions:`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct FunctionKeys {
    pub name: String,
    pub kernel: String,
    pub binary: String,
    pub symbol: String,
}

impl FunctionKeys {
    /// Returns the checked form, or the error.
    fn checked(&self) -> Result<Function, String> {
        let Self { name, kernel, binary, symbol } = self;
        let in_name = |of: char| of.is_ascii_alphanumeric() || matches!(of, '_' | '-' | '.' | ':');
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(in_name) {
            return Err(format!(
                "`{name}` is no name of a function (at most {LONGEST_NAME} letters, digits, `_`, `-`, `.` and `:`)"
            ));
        }
        let code = match (kernel.is_empty(), binary.is_empty(), symbol.is_empty()) {
            (false, true, true) => Code::Kernel(kernel.clone()),
            (true, false, false) => Code::Program { binary: binary.clone(), symbol: symbol.clone() },
            _ => return Err(format!("`{name}` needs `kernel`, or else both `binary` and `symbol`")),
        };
        if [kernel, binary, symbol].iter().any(|text| text.contains('\0')) {
            return Err(format!("`{name}` contains a zero byte"));
        }
        if !binary.is_empty() && !binary.starts_with('/') {
            return Err(format!("`{name}`: `{binary}` is no absolute path (as in `/usr/sbin/nginx`)"));
        }
        if returns_twice(symbol) {
            return Err(format!("`{name}`: {}", twice(symbol)));
        }
        Ok(Function { name: name.clone(), code })
    }
}

/// Returns the functions that are measured; none while the sensor is off.
#[must_use]
pub(super) fn wanted(config: &Config) -> Vec<Function> {
    let is_on = named(SENSOR).is_some_and(|sensor| sensors::is_on(config, sensor));
    let keys = config.functions.iter().filter(|_| is_on);
    keys.filter_map(|keys| keys.checked().ok()).collect()
}

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let bad = |message: String| Err(ConfigError::Value { key: "functions", message });
    let mut names = Vec::new();
    for keys in &config.functions {
        match keys.checked() {
            Ok(function) if names.contains(&function.name) => {
                return bad(format!("two functions have the name `{}`", function.name));
            }
            Ok(function) => names.push(function.name),
            Err(message) => return bad(message),
        }
    }
    if names.len() > MOST {
        return bad(format!("{} functions (at most {MOST})", names.len()));
    }
    let is_on = named(SENSOR).is_some_and(|sensor| sensors::is_on(config, sensor));
    if config.server.any_function && !is_on {
        let message = format!("needs `sensors.{SENSOR}.enabled: true`");
        return Err(ConfigError::Value { key: "server.anyFunction", message });
    }
    // Recordings of readers have the places that the list leaves free.
    if is_on && names.is_empty() && !config.server.any_function {
        return bad(format!("the list is empty, and `sensors.{SENSOR}.enabled` is true"));
    }
    let of_program = wanted(config).into_iter().find(|function| matches!(function.code, Code::Program { .. }));
    let has_user_frames = config.stacks.enabled && config.stacks.unwind != Unwinding::None;
    match of_program.filter(|_| !has_user_frames) {
        Some(Function { name, .. }) => bad(format!(
            "`{name}` is a function of a program, and the agent reads files of programs only for stacks with user \
             frames (set `stacks.enabled: true`, and `stacks.unwind` to `tables` or `frame-pointers`)"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    const ON: &str = "sensors: {functions: {enabled: true}}";

    fn checked(yaml: &str) -> Result<Vec<Function>, String> {
        let config = Config::parse(yaml).map_err(|error| error.to_string())?;
        let settings = Settings::try_from(config).map_err(|error| error.to_string())?;
        Ok(wanted(&settings.config))
    }

    #[test]
    fn functions_are_of_the_kernel_or_of_a_file() {
        let list = "functions: [{name: read, kernel: vfs_read}, {name: a, binary: /bin/a, symbol: main}]";
        let (binary, symbol) = ("/bin/a".to_owned(), "main".to_owned());
        let expected = [
            Function { name: "read".into(), code: Code::Kernel("vfs_read".into()) },
            Function { name: "a".into(), code: Code::Program { binary, symbol } },
        ];
        assert_eq!(checked(&format!("{ON}\n{list}")).unwrap(), expected);
        assert_eq!(checked(list).unwrap(), [], "the sensor is off");
        assert_eq!(checked(&format!("{ON}\nserver: {{anyFunction: true}}")).unwrap(), [], "for recordings");
    }

    #[test]
    fn a_function_that_cannot_be_meant_is_refused_by_its_name() {
        let nine = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let nine = nine.map(|name| format!("{{name: {name}, kernel: f}}")).join(", ");
        for (list, says) in [
            ("", "the list is empty"),
            (nine.as_str(), "9 functions (at most 8)"),
            ("{kernel: vfs_read}", "`` is no name"),
            ("{name: \"a b\", kernel: vfs_read}", "`a b` is no name"),
            ("{name: a}", "`a` needs `kernel`, or else"),
            ("{name: a, binary: /bin/a}", "`a` needs `kernel`, or else"),
            ("{name: a, kernel: vfs_read, symbol: main}", "`a` needs `kernel`, or else"),
            ("{name: a, binary: bin/a, symbol: main}", "`bin/a` is no absolute path"),
            ("{name: a, binary: /bin/a, symbol: _setjmp}", "`a`: `_setjmp` returns twice"),
            ("{name: a, kernel: f}, {name: a, kernel: g}", "two functions have the name `a`"),
            ("{name: a, kernels: f}", "unknown key `kernels`"),
        ] {
            let message = checked(&format!("{ON}\nfunctions: [{list}]")).unwrap_err();
            assert!(message.contains(says), "{list}: {message}");
        }
        let message = checked("server: {anyFunction: true}").unwrap_err();
        assert!(message.contains("`server.anyFunction`: needs `sensors.functions.enabled: true`"), "{message}");
        let program = "functions: [{name: a, binary: /bin/a, symbol: main}]";
        for stacks in ["enabled: false", "unwind: none"] {
            let message = checked(&format!("{ON}\n{program}\nstacks: {{{stacks}}}")).unwrap_err();
            assert!(message.contains("`a` is a function of a program"), "{message}");
        }
    }
}
