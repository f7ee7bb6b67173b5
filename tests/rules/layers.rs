//! The modules of the agent import downwards only, in the order of `agent/layers.txt`, and no files import each other
//! in a circle.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use podperf_tests::{rules::root, suite::Test, tests};

use crate::imports::{Import, imports};

pub(crate) const TESTS: &[Test] = tests![modules_import_lower_layers_only, no_files_import_each_other_in_a_circle];

/// The most lines that the list of layers may have.
const MOST_LAYERS: usize = 12;
/// Files that belong to no layer: they only list the modules, or start the program.
const ROOTS: [&str; 2] = ["lib", "main"];

fn agent() -> PathBuf {
    root().join("agent")
}

fn all_imports() -> Result<BTreeSet<Import>> {
    let found = imports(&agent().join("src/lib.rs"))?;
    ensure!(found.len() > 1000, "only {} imports were found", found.len());
    Ok(found)
}

/// Returns the module of the first level that a file belongs to.
fn module(file: &Path) -> String {
    let first = file.iter().next().unwrap_or_default().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

fn modules_import_lower_layers_only() -> Result<()> {
    let text = fs::read_to_string(agent().join("layers.txt"))?;
    ensure!(text.lines().count() <= MOST_LAYERS, "{} layers are more than {MOST_LAYERS}", text.lines().count());
    let layers = text.lines().enumerate().flat_map(|(layer, line)| line.split(' ').map(move |module| (module, layer)));
    let layers: BTreeMap<_, _> = layers.collect();
    let layer = |module: &str| {
        layers.get(module).copied().with_context(|| format!("`{module}` is in no line of agent/layers.txt"))
    };
    let mut wrong = Vec::new();
    for Import { from, to, name } in all_imports()? {
        let (above, below) = (module(&from), module(&to));
        if above != below && ![&above, &below].iter().any(|module| ROOTS.contains(&module.as_str())) {
            let (from_layer, to_layer) = (layer(&above)?, layer(&below)?);
            if from_layer >= to_layer {
                wrong.push(format!("{} imports `{name}` of {}", from.display(), to.display()));
            }
        }
    }
    ensure!(wrong.is_empty(), "against the order in agent/layers.txt:\n{}", wrong.join("\n"));
    Ok(())
}

/// Returns whether a module imports from its parent. A module and its children are one: a child may import from the
/// file that declares it.
fn is_of_parent(import: &Import) -> bool {
    let parent = if import.to.ends_with("mod.rs") { import.to.parent() } else { None };
    parent
        .map_or_else(|| import.from.starts_with(import.to.with_extension("")), |folder| import.from.starts_with(folder))
}

fn no_files_import_each_other_in_a_circle() -> Result<()> {
    let mut targets = BTreeMap::<PathBuf, BTreeSet<PathBuf>>::new();
    for import in all_imports()?.into_iter().filter(|import| !is_of_parent(import)) {
        targets.entry(import.from).or_default().insert(import.to);
    }
    // A file whose remaining imports are empty is in no circle.
    loop {
        let left: BTreeSet<_> = targets.keys().cloned().collect();
        targets.values_mut().for_each(|files| files.retain(|file| left.contains(file)));
        let before = targets.len();
        targets.retain(|_, files| !files.is_empty());
        if targets.len() == before {
            break;
        }
    }
    ensure!(targets.is_empty(), "in circles, or above one: {targets:#?}");
    Ok(())
}
