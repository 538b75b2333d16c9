//! Every relative link in a document leads to a file, and every `#part` of the same page to a
//! heading.

use crate::sources::SourceFile;

/// Reports the dead links of every Markdown page.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for source in sources.iter().filter(|source| source.path.ends_with(".md")) {
        for (index, line) in source.text.lines().enumerate() {
            for target in targets(line) {
                if let Some(what) = dead(source, target, sources) {
                    findings.push(format!("{}:{}: dead link `{target}`: {what}", source.path, index + 1));
                }
            }
        }
    }
}

/// The targets of `[text](target)` in a line.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find("](") {
        rest = &rest[start + 2..];
        let Some(end) = rest.find(')') else { break };
        found.push(rest[..end].split(' ').next().unwrap_or_default());
        rest = &rest[end..];
    }
    found
}

fn dead(source: &SourceFile, target: &str, sources: &[SourceFile]) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, part) = target.split_once('#').unwrap_or((target, ""));
    if path.is_empty() {
        let present = source.text.lines().any(|line| line.starts_with('#') && anchor(line) == part);
        return (!present).then_some("no such heading on this page");
    }
    let mut parts: Vec<&str> = source.path.split('/').collect();
    parts.pop();
    for step in path.split('/') {
        match step {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            step => parts.push(step),
        }
    }
    let wanted = parts.join("/");
    let folder = format!("{wanted}/");
    let present = sources.iter().any(|other| other.path == wanted || other.path.starts_with(&folder));
    (!present).then_some("no such file")
}

/// The anchor that a heading gets: lower case, spaces to hyphens, punctuation dropped.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' | '-' => Some('-'),
            letter if letter.is_alphanumeric() || letter == '_' => Some(letter),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let sources = [
            SourceFile { path: "docs/a.md".into(), text: text.into() },
            SourceFile { path: "docs/spec/log.md".into(), text: String::new() },
        ];
        check(&sources, &mut findings);
        findings
    }

    #[test]
    fn dead_links_are_found() {
        insta::assert_snapshot!(findings("[x](missing.md)\n[y](#nowhere)").join("\n"), @r"
        docs/a.md:1: dead link `missing.md`: no such file
        docs/a.md:2: dead link `#nowhere`: no such heading on this page
        ");
    }

    #[test]
    fn live_links_pass() {
        assert!(
            findings(
                "# A part, here\n[x](spec/log.md) [y](../docs/spec) [z](#a-part-here) [w](https://e.org)"
            )
            .is_empty()
        );
    }
}
