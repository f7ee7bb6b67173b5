//! Chooses the cgroups that are rows of their own. Pure.
//!
//! A cgroup that is no row is counted in its nearest ancestor that is a row; the root is always one. So rows partition
//! the node: they never overlap, and cgroups outside of the selection are still in the sum.

use super::Choice;

/// The choice of rows: a depth and two lists of patterns.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Largest number of levels between a row and the root.
    pub depth: usize,
    /// Choice of the paths that may be rows.
    pub paths: Choice,
}

impl Selection {
    /// Returns the row that counts `path`: itself or an ancestor.
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
        path.matches('/').count() <= self.depth && self.paths.has(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::Patterns;

    fn selection(depth: usize, include: &[&str], exclude: &[&str]) -> Selection {
        let patterns =
            |list: &[&str]| Patterns::new(&list.iter().map(|&text| text.into()).collect::<Vec<_>>()).unwrap();
        Selection { depth, paths: Choice { include: patterns(include), exclude: patterns(exclude) } }
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
}
