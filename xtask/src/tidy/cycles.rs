//! Modules of a crate import downwards: no file depends on a file that depends on it.
//!
//! 1. [`files`] reads the non-test files of a crate: what each defines, imports and re-exports, and
//!    the paths that its code names.
//! 2. [`resolve`] finds, for each path that begins in this crate, the file that defines the item.
//!    It follows re-exports, so a name that a parent only passes on counts for the child.
//! 3. A depth-first search (Tarjan, 1972) finds the strongly connected components of files. One of
//!    more than one file is a finding, printed as a shortest cycle with the names that tie it.
//!
//! A `mod` declaration is no dependency, and neither is a re-export that the file does not use
//! itself. Method calls name no file: two files that add methods to one type and call each other's
//! are not seen.

mod files;
mod resolve;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::sources::SourceFile;
use resolve::{Crate, Graph};

/// Source folders that may still have cycles, and the most files on cycles in each. The numbers
/// only shrink.
const EXCEPTIONS: [(&str, usize); 0] = [];

/// Prints the files of the crate in `folder` (`dataplane/net`) in the order of its layers, lowest
/// first, each with the files that it imports and the names it takes. Files on a cycle are under
/// it.
///
/// # Errors
///
/// A file that cannot be parsed, or no file at all.
pub(crate) fn print(sources: &[SourceFile], folder: &str) -> Result<(), String> {
    let folder = format!("{}/src/", folder.trim_end_matches('/'));
    let graph = Crate::read(&folder, sources)?.graph();
    if graph.is_empty() {
        return Err(format!(
            "{folder} has no source files; name the folder of a crate, such as dataplane/net"
        ));
    }
    for component in components(&graph) {
        if component.len() > 1 {
            println!("-- a cycle of {} files:", component.len());
        }
        for file in &component {
            println!("{}", file.trim_start_matches(&folder));
            for (below, names) in &graph[file] {
                let mark = if component.contains(below) { "  * " } else { "    " };
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                println!("{mark}{}: {}", below.trim_start_matches(&folder), names.join(", "));
            }
        }
        if component.len() > 1 {
            println!("-- end of the cycle; * is an import inside it");
        }
    }
    Ok(())
}

/// Reports the cycles of each crate.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for manifest in sources.iter().filter(|source| source.path.ends_with("/Cargo.toml")) {
        let folder = format!("{}src/", manifest.path.trim_end_matches("Cargo.toml"));
        let graph = match Crate::read(&folder, sources) {
            Ok(read) => read.graph(),
            Err(cause) => {
                findings.push(cause);
                continue;
            }
        };
        let tied: Vec<_> = components(&graph).into_iter().filter(|files| files.len() > 1).collect();
        let files: usize = tied.iter().map(BTreeSet::len).sum();
        let allowed =
            EXCEPTIONS.iter().find(|(excepted, _)| *excepted == folder).map_or(0, |(_, most)| *most);
        if files < allowed {
            findings.push(format!(
                "xtask/src/tidy/cycles.rs:1: {folder} has {files} files on cycles, not {allowed}; lower its exception"
            ));
        }
        if files > allowed {
            findings.extend(tied.iter().map(|component| describe(&graph, component)));
        }
    }
}

/// The strongly connected components, each after all that it depends on.
fn components(graph: &Graph) -> Vec<BTreeSet<String>> {
    let mut search =
        Search { graph, next: 0, numbers: BTreeMap::new(), stack: Vec::new(), found: Vec::new() };
    for file in graph.keys() {
        if !search.numbers.contains_key(file.as_str()) {
            search.visit(file);
        }
    }
    search.found
}

/// The state of Tarjan's search.
struct Search<'a> {
    graph: &'a Graph,
    next: usize,
    /// Number of each visited file, in the order of the visits; `usize::MAX` once its component is
    /// found.
    numbers: BTreeMap<&'a str, usize>,
    stack: Vec<&'a str>,
    found: Vec<BTreeSet<String>>,
}

impl<'a> Search<'a> {
    /// Visits `file` and returns the lowest number that it reaches on the stack. The depth is at
    /// most the number of files of a crate.
    fn visit(&mut self, file: &'a str) -> usize {
        let number = self.next;
        self.next += 1;
        self.numbers.insert(file, number);
        self.stack.push(file);
        let mut lowest = number;
        let graph = self.graph;
        for below in graph.get(file).into_iter().flat_map(BTreeMap::keys) {
            lowest = lowest.min(match self.numbers.get(below.as_str()) {
                Some(known) => *known,
                None => self.visit(below),
            });
        }
        if lowest == number {
            let start = self.stack.iter().position(|other| *other == file).unwrap_or_default();
            let component = self.stack.split_off(start);
            for member in &component {
                self.numbers.insert(member, usize::MAX);
            }
            self.found.push(component.into_iter().map(str::to_owned).collect());
        }
        lowest
    }
}

/// A shortest cycle through the first file of `component`, with the names that tie it.
fn describe(graph: &Graph, component: &BTreeSet<String>) -> String {
    let first = component.first().expect("a component has files");
    let mut text = format!("{first}:1: {} files on a cycle of imports: {first}", component.len());
    for (from, to) in shortest(graph, component, first) {
        let names: Vec<&str> = graph[&from][&to].iter().map(String::as_str).take(5).collect();
        text.push_str(&format!(" -> {to} ({})", names.join(", ")));
    }
    text.push_str("; move what both need into a file below");
    text
}

/// The edges of a shortest way from `first` back to it.
fn shortest(graph: &Graph, component: &BTreeSet<String>, first: &str) -> Vec<(String, String)> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([first]);
    while let Some(file) = queue.pop_front() {
        for below in graph[file].keys().filter(|below| component.contains(*below)) {
            if below == first {
                let mut edges = vec![(file.to_owned(), first.to_owned())];
                let mut at = file;
                while let Some(above) = came_from.get(at) {
                    edges.push(((*above).to_owned(), at.to_owned()));
                    at = above;
                }
                edges.reverse();
                return edges;
            }
            if !came_from.contains_key(below.as_str()) {
                came_from.insert(below, file);
                queue.push_back(below);
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let mut sources = vec![SourceFile { path: "a/Cargo.toml".into(), text: String::new() }];
        sources.extend(
            files
                .iter()
                .map(|(path, text)| SourceFile { path: format!("a/src/{path}"), text: (*text).into() }),
        );
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod one; mod two;");

    #[test]
    fn two_files_that_import_each_other_are_found_with_the_names() {
        let found = findings(&[
            ROOT,
            ("one.rs", "use crate::two::B; pub struct A; pub fn a() -> B { B }"),
            ("two.rs", "pub struct B; fn b() { let _ = crate::one::A; }"),
        ]);
        insta::assert_snapshot!(found.join("\n"), @"a/src/one.rs:1: 2 files on a cycle of imports: a/src/one.rs -> a/src/two.rs (B) -> a/src/one.rs (A); move what both need into a file below");
    }

    #[test]
    fn imports_in_one_direction_are_free() {
        let found =
            findings(&[ROOT, ("one.rs", "use super::two; fn a() { two::b() }"), ("two.rs", "pub fn b() {}")]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_child_and_its_parent_that_use_each_other_are_found() {
        let found = findings(&[
            ("lib.rs", "mod one;"),
            ("one.rs", "mod below; pub struct A; fn a() { below::b() }"),
            ("one/below.rs", "use super::A; pub fn b() -> A { A }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_re_export_counts_for_the_file_that_defines() {
        let found = findings(&[
            ("lib.rs", "mod one; mod two;"),
            ("one.rs", "mod below; pub use below::B;"),
            ("one/below.rs", "pub struct B;"),
            ("two.rs", "use crate::one::B; pub fn two() -> B { B }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
        let found = findings(&[
            ("lib.rs", "mod one;"),
            ("one.rs", "mod below; mod beside; pub use below::*;"),
            ("one/below.rs", "pub struct B; fn b() { super::beside::c() }"),
            ("one/beside.rs", "use super::B; pub fn c() -> B { B }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("one/below.rs -> a/src/one/beside.rs"), "{found:?}");
    }

    #[test]
    fn paths_inside_macros_count_and_tests_do_not() {
        let two = ("two.rs", "pub const B: u8 = 1; fn b() { assert!(crate::one::A > 0); }");
        assert_eq!(findings(&[ROOT, ("one.rs", "pub const A: u8 = crate::two::B;"), two]).len(), 1);
        let found = findings(&[
            ROOT,
            ("one.rs", "pub const A: u8 = 1; #[cfg(test)] mod tests { use crate::two::B; }"),
            two,
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
