//! Calendar dates. The build script and the tests of `podperf --version` use this file. Pure.

/// Returns the date of Unix seconds in UTC, such as `2026-11-23`.
pub(crate) fn of(seconds: i64) -> String {
    let (mut year, mut day) = (1970, seconds.div_euclid(86_400));
    while day < 0 {
        year -= 1;
        day += days(year);
    }
    while day >= days(year) {
        day -= days(year);
        year += 1;
    }
    let february = days(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", day + 1)
}

const fn days(year: i64) -> i64 {
    if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 }
}
