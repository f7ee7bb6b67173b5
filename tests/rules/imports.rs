//! Reads the imports between the files of a crate from its sources.
//!
//! A path that starts at `crate`, `self`, `super`, a child module or an imported name leads to the file that defines
//! its last known name, through re-exports. Tests inside the files are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use syn::{Attribute, Ident, Item, ItemFn, ItemImpl, ItemMod, ItemUse, UseTree, visit::Visit};

/// The path of a module from the root of the crate.
type Module = Vec<String>;

/// An import of a name of another file. Paths start at the folder of the crate's root file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    pub(crate) name: String,
}

/// Re-exports that lead to a definition, at most.
const LONGEST_WAY: usize = 8;

/// A module's file and the paths in it.
#[derive(Default)]
struct Source {
    file: PathBuf,
    /// Imported names with their paths from the root of the crate.
    names: BTreeMap<String, Module>,
    used: BTreeSet<Module>,
}

/// Returns all imports between files of the crate with this root file.
///
/// # Errors
///
/// When a file cannot be read, or is not Rust.
pub(crate) fn imports(root: &Path) -> Result<BTreeSet<Import>> {
    let folder = root.parent().context("the root file is in no folder")?;
    let mut modules = BTreeMap::new();
    read(folder, root, folder, Vec::new(), &mut modules)?;
    let mut found = BTreeSet::new();
    for source in modules.values() {
        for path in &source.used {
            if let Some((to, name)) = definition(&modules, path, 0).filter(|(file, _)| *file != source.file) {
                found.insert(Import { from: source.file.clone(), to, name });
            }
        }
    }
    Ok(found)
}

/// Reads the file of a module and the files of its child modules, which are in the folder `children`.
fn read(
    folder: &Path,
    file: &Path,
    children: &Path,
    module: Module,
    modules: &mut BTreeMap<Module, Source>,
) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("failed to read `{}`", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("failed to parse `{}`", file.display()))?;
    let mut child_names = BTreeSet::new();
    for item in &parsed.items {
        let Item::Mod(child) = item else { continue };
        if child.content.is_some() || is_test(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let (flat, below) = (children.join(format!("{name}.rs")), children.join(&name));
        let path = if flat.exists() { flat } else { below.join("mod.rs") };
        let child = module.iter().cloned().chain([name.clone()]).collect();
        child_names.insert(name);
        read(folder, &path, &below, child, modules)?;
    }
    let source = Source { file: file.strip_prefix(folder)?.to_owned(), ..Source::default() };
    let mut reader = Reader { module: &module, children: &child_names, source };
    reader.visit_file(&parsed);
    let source = reader.source;
    modules.insert(module, source);
    Ok(())
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<Ident>().is_ok_and(|condition| condition == "test")
    })
}

/// Collects the paths of one file.
struct Reader<'a> {
    module: &'a Module,
    children: &'a BTreeSet<String>,
    source: Source,
}

impl Reader<'_> {
    /// Returns the path from the root of the crate; `None` for a path of another crate.
    fn whole_path(&self, path: &[String]) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => self.module.clone(),
            "super" => self.module[..self.module.len().checked_sub(1)?].to_vec(),
            name if self.children.contains(name) => self.module.iter().chain([first]).cloned().collect(),
            name => self.source.names.get(name)?.clone(),
        };
        while let Some((_, more)) = rest.split_first().filter(|(next, _)| *next == "super") {
            base.pop()?;
            rest = more;
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    fn tree(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.tree(prefix, &path.tree);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(prefix, tree)),
            UseTree::Name(name) => self.import(prefix, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.import(prefix, &rename.ident, &rename.rename),
            // Only tests import all names of a module.
            UseTree::Glob(_) => {}
        }
    }

    fn import(&mut self, prefix: &[String], name: &Ident, local: &Ident) {
        let mut path = prefix.to_vec();
        let mut local = local.to_string();
        if name == "self" {
            if local == "self" {
                local = path.last().cloned().unwrap_or_default();
            }
        } else {
            path.push(name.to_string());
        }
        if let Some(path) = self.whole_path(&path) {
            self.source.names.insert(local, path.clone());
            self.source.used.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            self.tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1
            && let Some(path) = self.whole_path(&segments)
        {
            self.source.used.insert(path);
        }
        syn::visit::visit_path(self, path);
    }
}

/// Returns the file that defines the name at the end of a path, and the name.
fn definition(modules: &BTreeMap<Module, Source>, path: &[String], steps: usize) -> Option<(PathBuf, String)> {
    let length = (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
    let source = modules.get(&path[..length])?;
    let Some(name) = path.get(length) else { return Some((source.file.clone(), "self".to_owned())) };
    match source.names.get(name).filter(|_| steps < LONGEST_WAY) {
        Some(target) => {
            let target: Module = target.iter().chain(&path[length + 1..]).cloned().collect();
            definition(modules, &target, steps + 1)
        }
        None => Some((source.file.clone(), name.clone())),
    }
}
