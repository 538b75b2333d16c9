//! Every file and every test that a page names exists. A row of promises whose test does not exist
//! proves nothing.
//!
//! The rule reads the code spans of each page below `docs`:
//!
//! 1. A path to a `.rs` file, whole or its last parts, names a file.
//! 2. In a column of a table that is headed `test`, a span in snake case names a test: a function
//!    with a `test` attribute. If a file precedes it in the same cell, the function is in that
//!    file or in its folder.
//! 3. Elsewhere a span of at least four words in snake case names a function.

use std::collections::BTreeSet;

use crate::sources::SourceFile;

/// Words of a name that make it one of a test outside tables; counters and options have fewer.
const WORDS: usize = 4;

/// The word in the head of a column that holds names of tests.
const TEST_COLUMN: &str = "test";

/// A file of the workspace and its functions.
struct Code<'a> {
    path: &'a str,
    functions: BTreeSet<&'a str>,
    tests: BTreeSet<&'a str>,
}

/// Reports each name of a file or a test, in pages below `docs`, that does not exist.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    let code: Vec<Code<'_>> =
        sources.iter().filter(|source| source.path.ends_with(".rs")).map(Code::read).collect();
    for page in sources.iter().filter(|source| is_page(&source.path)) {
        let mut heads: Vec<bool> = Vec::new();
        for (index, line) in page.text.lines().enumerate() {
            let mut report =
                |finding: String| findings.push(format!("{}:{}: {finding}", page.path, index + 1));
            if !line.starts_with('|') {
                heads.clear();
                spans(line).for_each(|span| check_span(span, &code, &mut report));
                continue;
            }
            let cells = cells(line);
            if heads.is_empty() {
                heads = cells
                    .iter()
                    .map(|cell| cell.split_whitespace().any(|word| word == TEST_COLUMN))
                    .collect();
            }
            for (column, cell) in cells.into_iter().enumerate() {
                if heads.get(column) == Some(&true) {
                    check_test_cell(cell, &code, &mut report);
                } else {
                    spans(cell).for_each(|span| check_span(span, &code, &mut report));
                }
            }
        }
    }
}

fn is_page(path: &str) -> bool {
    path.starts_with("docs/") && path.ends_with(".md")
}

/// The cells of a row. GitHub ends a cell at a `|` within code as well.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').collect()
}

/// The code spans of a line.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Checks a span outside the columns of tests.
fn check_span(span: &str, code: &[Code<'_>], report: &mut impl FnMut(String)) {
    if is_file(span) {
        if !code.iter().any(|code| code.is_at(span)) {
            report(format!("there is no file `{span}`; name one that exists"));
        }
    } else if let Some(name) = function_name(span).filter(|name| name.split('_').count() >= WORDS)
        && !code.iter().any(|code| code.functions.contains(name))
    {
        report(format!("there is no function `{span}`; name one that exists"));
    }
}

/// Checks a cell of a column of tests.
fn check_test_cell(cell: &str, code: &[Code<'_>], report: &mut impl FnMut(String)) {
    let mut file = None;
    for span in spans(cell) {
        if is_file(span) {
            check_span(span, code, report);
            file = Some(span);
            continue;
        }
        let Some(name) = function_name(span) else { continue };
        let mut having = code.iter().filter(|code| code.tests.contains(name)).peekable();
        if having.peek().is_none() {
            report(format!("there is no test `{span}`; name one that exists"));
        } else if let Some(file) = file
            && !having.any(|code| code.is_at(file) || code.is_below(file))
        {
            report(format!("`{file}` has no test `{span}`; name the file that has it"));
        }
    }
}

fn is_file(span: &str) -> bool {
    span.ends_with(".rs") && !span.contains([' ', '*', '{'])
}

/// The function that a span in snake case names, which may have its modules before it.
fn function_name(span: &str) -> Option<&str> {
    let plain =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_:".contains(letter);
    let name = span.rsplit("::").next()?;
    (span.chars().all(plain) && name.starts_with(|letter: char| letter.is_ascii_lowercase())).then_some(name)
}

impl<'a> Code<'a> {
    fn read(source: &'a SourceFile) -> Self {
        let mut code = Self { path: &source.path, functions: BTreeSet::new(), tests: BTreeSet::new() };
        let mut is_test = false;
        for line in source.text.lines().map(str::trim) {
            if line.starts_with("#[") {
                is_test |= line.contains("test]") || line.contains("::test(");
            } else if let Some(name) = defined(line) {
                code.functions.insert(name);
                if std::mem::take(&mut is_test) {
                    code.tests.insert(name);
                }
            }
        }
        code
    }

    /// Whether `name` is its path, or the last parts of it.
    fn is_at(&self, name: &str) -> bool {
        self.path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// Whether it is a submodule of the file `name`: `it/hostile/users.rs` of `hostile.rs`.
    fn is_below(&self, name: &str) -> bool {
        let folder = format!("/{}/", name.trim_end_matches(".rs"));
        format!("/{}", self.path).contains(&folder)
    }
}

/// The name of the function that a line defines.
fn defined(line: &str) -> Option<&str> {
    let (before, name) = line.split_once("fn ")?;
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len());
    ((before.is_empty() || before.ends_with(' ')) && end != 0).then(|| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> String {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let sources = [
            file("docs/security.md", text),
            file(
                "a/tests/it/fuzz.rs",
                "#[test]\nfn no_frame_does_harm() {\n#[test]\nfn flood() {\nfn ends_its_own_process() {",
            ),
            file("a/tests/it/fuzz/users.rs", "#[tokio::test]\nasync fn users_are_apart_for_good() {"),
        ];
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.join("\n")
    }

    #[test]
    fn missing_files_and_functions_are_found_outside_tables() {
        insta::assert_snapshot!(findings("# Fuzz\n`a/tests/fuzz.rs` has `no_frame_does_any_harm`."), @r"
        docs/security.md:2: there is no file `a/tests/fuzz.rs`; name one that exists
        docs/security.md:2: there is no function `no_frame_does_any_harm`; name one that exists
        ");
    }

    #[test]
    fn missing_tests_are_found_in_tables() {
        let page = "\
            | the attacker cannot | test |\n\
            | --- | --- |\n\
            | hang | `fuzz.rs`: `floods` |\n\
            | exit | `fuzz.rs`: `ends_its_own_process` |\n\
            | meet | `fuzz/users.rs`: `flood` |\n";
        insta::assert_snapshot!(findings(page), @r"
        docs/security.md:3: there is no test `floods`; name one that exists
        docs/security.md:4: there is no test `ends_its_own_process`; name one that exists
        docs/security.md:5: `fuzz/users.rs` has no test `flood`; name the file that has it
        ");
    }

    #[test]
    fn names_that_exist_pass() {
        assert_eq!(
            findings("`a/tests/it/fuzz.rs`, `fuzz.rs`: `fuzz::no_frame_does_harm`, `sends_bytes`"),
            ""
        );
        let page = "\
            | the attacker cannot | how | test |\n\
            | --- | --- | --- |\n\
            | hang | `limits` | `fuzz.rs`: `flood`; `users::users_are_apart_for_good` |\n\
            | exit | | the same: `no_frame_does_harm`; `cargo test` |\n";
        assert_eq!(findings(page), "");
    }
}
