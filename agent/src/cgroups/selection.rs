//! Which cgroups are rows of their own. Pure.
//!
//! A cgroup that is none is counted in its nearest ancestor that is one; the root always is. So rows partition the
//! node: they never overlap, and whatever is left out of the selection is still in the sum.

use regex::Regex;
use thiserror::Error;

/// The choice of rows: a depth and two lists of patterns.
#[derive(Clone, Debug)]
pub struct Selection {
    depth: usize,
    include: Vec<Regex>,
    exclude: Vec<Regex>,
}

/// A pattern that is no regular expression.
#[derive(Debug, Error)]
#[error("failed to parse pattern `{pattern}`: {message}")]
pub struct SelectionError {
    pattern: String,
    message: String,
}

impl Selection {
    /// Rows are the cgroups at most `depth` levels below the root whose whole path matches a pattern of `include`
    /// (all, when it is empty) and none of `exclude`.
    ///
    /// # Errors
    ///
    /// When a pattern is no regular expression.
    pub fn new(depth: usize, include: &[String], exclude: &[String]) -> Result<Self, SelectionError> {
        let compile = |patterns: &[String]| patterns.iter().map(|pattern| anchored(pattern)).collect::<Result<_, _>>();
        Ok(Self { depth, include: compile(include)?, exclude: compile(exclude)? })
    }

    /// The row that `path` is counted in: itself or an ancestor.
    #[must_use]
    pub fn row<'a>(&self, path: &'a str) -> &'a str {
        let mut path = path;
        while path != "/" && !path.is_empty() {
            if self.is_row(path) {
                return path;
            }
            path = &path[..path.rfind('/').unwrap_or(0)];
        }
        "/"
    }

    fn is_row(&self, path: &str) -> bool {
        path.matches('/').count() <= self.depth
            && (self.include.is_empty() || self.include.iter().any(|pattern| pattern.is_match(path)))
            && !self.exclude.iter().any(|pattern| pattern.is_match(path))
    }
}

/// Patterns match whole paths, as Prometheus' do.
fn anchored(pattern: &str) -> Result<Regex, SelectionError> {
    Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
        // The library's message draws the pattern over several lines; its last line is the reason.
        let message = error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        SelectionError { pattern: pattern.to_owned(), message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(depth: usize, include: &[&str], exclude: &[&str]) -> Selection {
        let owned = |patterns: &[&str]| patterns.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>();
        Selection::new(depth, &owned(include), &owned(exclude)).unwrap()
    }

    #[test]
    fn deeper_cgroups_are_counted_in_their_ancestor_at_the_depth() {
        let selection = selection(2, &[], &[]);
        assert_eq!(selection.row("/a/b"), "/a/b");
        assert_eq!(selection.row("/a/b/c/d"), "/a/b");
        assert_eq!(selection.row("/"), "/");
    }

    #[test]
    fn depth_zero_leaves_only_the_root() {
        assert_eq!(selection(0, &[], &[]).row("/a/b"), "/");
    }

    #[test]
    fn the_excluded_are_counted_above_not_lost() {
        let selection = selection(4, &[], &["/user.slice/.*"]);
        assert_eq!(selection.row("/user.slice/user-0.slice/x.scope"), "/user.slice");
    }

    #[test]
    fn only_the_included_are_rows_and_patterns_match_whole_paths() {
        let selection = selection(4, &["/system.slice/ssh.*"], &[]);
        assert_eq!(selection.row("/system.slice/ssh.service"), "/system.slice/ssh.service");
        assert_eq!(selection.row("/other/system.slice/ssh.service"), "/");
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let error = Selection::new(1, &["/a(".into()], &[]).unwrap_err().to_string();
        assert!(error.contains("`/a(`") && error.contains("unclosed group"), "{error}");
    }
}
