//! What a page says is shown by a test, or stands in a file, is there: in tables of promises a name
//! that is wrong shows nothing.
//!
//! 1. A span of code that is a path to a `.rs` file, from the root or from some folder on, names a
//!    file.
//! 2. A span of code that reads like the name of a test (at least four words, perhaps with its
//!    modules) names a function.

use std::collections::BTreeSet;

use crate::sources::SourceFile;

/// Words of a name that make it one of a test; counters and options have fewer.
const WORDS: usize = 4;

/// Reports the names of the pages below `docs` that nothing has.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    let code: Vec<_> = sources.iter().filter(|source| source.path.ends_with(".rs")).collect();
    let functions: BTreeSet<&str> = code.iter().flat_map(|source| functions(&source.text)).collect();
    for page in sources.iter().filter(|source| is_page(&source.path)) {
        for (index, line) in page.text.lines().enumerate() {
            for span in line.split('`').skip(1).step_by(2) {
                let missing = if span.ends_with(".rs") && !span.contains([' ', '*', '{']) {
                    let below = format!("/{span}");
                    !code.iter().any(|source| source.path == span || source.path.ends_with(&below))
                } else {
                    test_name(span).is_some_and(|name| !functions.contains(name))
                };
                if missing {
                    findings.push(format!(
                        "{}:{}: `{span}` is nowhere: name what there is",
                        page.path,
                        index + 1
                    ));
                }
            }
        }
    }
}

fn is_page(path: &str) -> bool {
    path.starts_with("docs/") && path.ends_with(".md")
}

/// The last part of a span that reads like the path of a test.
fn test_name(span: &str) -> Option<&str> {
    let plain =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_:".contains(letter);
    let name = span.rsplit("::").next()?;
    (span.chars().all(plain) && name.split('_').count() >= WORDS).then_some(name)
}

/// Names behind `fn` in a text, and those alone on a line: macros make tests of lists of names.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim();
        let name = line.split_once("fn ").map_or(line, |(_, name)| name);
        let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len());
        (end != 0).then(|| &name[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> usize {
        let mut findings = Vec::new();
        let sources = [
            SourceFile { path: "docs/security.md".into(), text: text.into() },
            SourceFile { path: "a/tests/it/fuzz.rs".into(), text: "    fn no_frame_does_harm() {".into() },
        ];
        check(&sources, &mut findings);
        findings.len()
    }

    #[test]
    fn names_that_are_nowhere_are_found() {
        assert_eq!(findings("`a/tests/fuzz.rs`: `no_frame_does_any_harm`"), 2);
    }

    #[test]
    fn names_that_are_there_pass() {
        assert_eq!(findings("`a/tests/it/fuzz.rs`, `fuzz.rs`: `fuzz::no_frame_does_harm`, `sends_bytes`"), 0);
    }
}
