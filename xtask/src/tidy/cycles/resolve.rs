//! The files of one crate, and which of them each path leads to.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{self, Contents};
use crate::sources::SourceFile;

/// Which file depends on which, and by which names.
pub(super) type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Re-exports that are followed for one name: more is a loop of them.
const MOST_RE_EXPORTS: usize = 8;

/// The modules of a crate that are files, by their paths below the root.
pub(super) struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
}

struct Module {
    file: String,
    contents: Contents,
}

impl Crate {
    /// Reads the files under `folder` (`net/src/`) that are no tests.
    ///
    /// # Errors
    ///
    /// A finding that names a file that cannot be parsed.
    pub(super) fn read(folder: &str, sources: &[SourceFile]) -> Result<Self, String> {
        let mut modules = BTreeMap::new();
        for source in sources {
            let Some(path) = source.path.strip_prefix(folder).and_then(|path| path.strip_suffix(".rs"))
            else {
                continue;
            };
            if path.split('/').any(|part| part == "tests" || part == "bin") {
                continue;
            }
            let name = match path {
                "lib" | "main" => Vec::new(),
                path => path.split('/').map(str::to_owned).collect(),
            };
            let contents = files::read(&source.text)
                .map_err(|cause| format!("{}:1: cannot be read: {cause}", source.path))?;
            modules.insert(name, Module { file: source.path.clone(), contents });
        }
        Ok(Self { modules })
    }

    /// Which file depends on which.
    pub(super) fn graph(&self) -> Graph {
        let mut graph: Graph =
            self.modules.values().map(|module| (module.file.clone(), BTreeMap::new())).collect();
        for (place, module) in &self.modules {
            let edges = graph.entry(module.file.clone()).or_default();
            for (target, name) in self.uses(place, module) {
                if target != module.file {
                    edges.entry(target).or_default().insert(name);
                }
            }
        }
        graph
    }

    /// The files that `module` at `place` depends on, each with the name that it takes.
    fn uses(&self, place: &[String], module: &Module) -> Vec<(String, String)> {
        let contents = &module.contents;
        let mut found = Vec::new();
        for (name, path) in &contents.imports {
            let only_passed_on =
                contents.exported.contains(name) && !contents.paths.iter().any(|path| path[0] == *name);
            if !only_passed_on {
                found.extend(self.item(&self.absolute(place, path)));
            }
        }
        for path in contents.globs.iter().filter(|_| !contents.paths.is_empty()) {
            // What a glob brings in is known by the names that the file uses and nothing else
            // explains.
            let Some(path) = self.absolute(place, path) else { continue };
            for used in contents.paths.iter().filter(|used| !contents.items.contains(&used[0])) {
                if !contents.imports.contains_key(&used[0]) {
                    let full = path.iter().chain(&used[..1]).cloned().collect();
                    found.extend(self.item(&Some(full)));
                }
            }
        }
        for path in &contents.paths {
            found.extend(self.item(&self.absolute(place, path)));
        }
        found
    }

    /// `path` from the root of the crate, as the file at `place` means it; none if it leads
    /// elsewhere.
    fn absolute(&self, place: &[String], path: &[String]) -> Option<Vec<String>> {
        let joined = |base: &[String], rest: &[String]| [base, rest].concat();
        let first = path.first()?;
        match first.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => return Some(joined(place, &path[1..])),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                return Some(joined(place.get(..place.len().checked_sub(ups)?)?, &path[ups..]));
            }
            _ => {}
        }
        let contents = &self.modules.get(place)?.contents;
        let child = joined(place, &path[..1]);
        if self.modules.contains_key(&child) || contents.items.contains(first) {
            return Some(joined(place, path));
        }
        // A name that `use` brought in stands for its path. `use libc::{self}` names a crate.
        let imported = contents.imports.get(first).filter(|imported| imported.first() != Some(first))?;
        Some(joined(&self.absolute(place, imported)?, &path[1..]))
    }

    /// The file that defines the item at `path`, and its name. None for a module that is only
    /// named.
    fn item(&self, path: &Option<Vec<String>>) -> Option<(String, String)> {
        let mut path = path.clone()?;
        for _ in 0..MOST_RE_EXPORTS {
            let depth = (0..=path.len()).rev().find(|depth| self.modules.contains_key(&path[..*depth]))?;
            let (place, rest) = path.split_at(depth);
            let name = rest.first()?;
            let module = &self.modules[place];
            if module.contents.items.contains(name) {
                return Some((module.file.clone(), name.clone()));
            }
            let next = match module.contents.imports.get(name) {
                Some(imported) => self.absolute(place, imported),
                None => self.through_globs(place, module, name),
            }?;
            path = next.into_iter().chain(rest[1..].iter().cloned()).collect();
        }
        None
    }

    /// The path of `name` in the one module that `module` re-exports whole and that defines it.
    fn through_globs(&self, place: &[String], module: &Module, name: &str) -> Option<Vec<String>> {
        module.contents.globs.iter().filter_map(|glob| self.absolute(place, glob)).find_map(|glob| {
            let target = self.modules.get(&glob)?;
            let knows = target.contents.items.contains(name) || target.contents.imports.contains_key(name);
            knows.then(|| glob.iter().cloned().chain([name.to_owned()]).collect())
        })
    }
}
