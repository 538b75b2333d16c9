//! Numbers that a page repeats from the code.

use crate::sources::SourceFile;

/// A page, the words before the number, and the constant: its file, and its name.
const NUMBERS: [(&str, &str, &str, &str); 4] = [
    ("docs/spec/control-protocol.md", "(server). Version ", "foundation/protocol/src/lib.rs", "PROTOCOL"),
    (
        "docs/spec/control-protocol.md",
        "Magic `SIETCHMP`, version ",
        "foundation/protocol/src/metrics.rs",
        "VERSION",
    ),
    ("docs/spec/log.md", "`dataplane/persist/src/`. Version ", "dataplane/persist/src/layout.rs", "VERSION"),
    ("docs/spec/volume.md", "`control/volume/src/`. Version ", "control/volume/src/layout.rs", "VERSION"),
];

/// Reports each number that is not the constant's, and each that is not found any more.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for (page, words, file, name) in NUMBERS {
        let text_of = |path: &str| sources.iter().find(|source| source.path == path);
        // A test has only some of the files.
        let (Some(page), Some(code)) = (text_of(page), text_of(file)) else { continue };
        let constant = constant(&code.text, name);
        let line = page.text.lines().position(|line| line.contains(words));
        let said = line.and_then(|at| {
            let line = page.text.lines().nth(at)?;
            number(line.get(line.find(words)? + words.len()..)?)
        });
        if said.is_none() || said != constant {
            let shown =
                |number: Option<u64>| number.map_or("nothing".to_owned(), |number| number.to_string());
            findings.push(format!(
                "{}:{}: `{words}` is followed by {}, and {name} of {file} is {}; write the constant's value",
                page.path,
                line.map_or(1, |at| at + 1),
                shown(said),
                shown(constant)
            ));
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// The value of `const NAME: TYPE = NUMBER;`.
fn constant(code: &str, name: &str) -> Option<u64> {
    let begin = format!("const {name}: ");
    let line = code.lines().find(|line| line.contains(&begin))?;
    number(line.split(" = ").nth(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_differs_from_its_constant_is_found() {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let code = file("control/volume/src/layout.rs", "pub(crate) const VERSION: u32 = 3;\n");
        let findings = |text: &str| {
            let mut findings = Vec::new();
            let code = file(&code.path, &code.text);
            check(&[file("docs/spec/volume.md", text), code], &mut findings);
            findings
        };
        assert!(findings("Code: `control/volume/src/`. Version 3.\n").is_empty());
        let wrong = findings("# Volume\nCode: `control/volume/src/`. Version 2.\n");
        insta::assert_snapshot!(wrong.join("\n"), @"docs/spec/volume.md:2: ``control/volume/src/`. Version ` is followed by 2, and VERSION of control/volume/src/layout.rs is 3; write the constant's value");
        assert_eq!(findings("Code: here.\n").len(), 1);
    }
}
