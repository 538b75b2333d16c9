//! Every counter that exists is changed somewhere: a field of a struct in a `metrics.rs` whose name never stands
//! on the left of an assignment in its crate is a promise that nobody keeps.

use super::SourceFile;

/// Reports the counters that nobody changes.
pub fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for metrics in sources.iter().filter(|source| source.path.ends_with("/metrics.rs")) {
        let Some(folder) = metrics.path.find("/src/").map(|end| &metrics.path[..end + 5]) else {
            continue;
        };
        let crate_files: Vec<&SourceFile> = sources
            .iter()
            .filter(|source| source.path.starts_with(folder) && source.path.ends_with(".rs"))
            .collect();
        for (line, field) in fields(&metrics.text) {
            if !crate_files.iter().any(|source| changes(&source.text, field)) {
                findings.push(format!(
                    "{}:{line}: counter `{field}` is never changed; count with it or remove it",
                    metrics.path
                ));
            }
        }
    }
}

/// `(line, name)` of each `pub name: u64` field.
fn fields(text: &str) -> Vec<(usize, &str)> {
    text.lines()
        .enumerate()
        .filter_map(|(index, line)| {
            let field = line.trim().strip_prefix("pub ")?.strip_suffix(": u64,")?;
            field
                .chars()
                .all(|letter| letter.is_alphanumeric() || letter == '_')
                .then_some((index + 1, field))
        })
        .collect()
}

/// Whether `.field` is assigned, added to, or borrowed to be changed in `text`, or set in a struct literal.
fn changes(text: &str, field: &str) -> bool {
    let member = format!(".{field}");
    text.match_indices(&member).any(|(start, _)| {
        let rest = text[start + member.len()..].trim_start();
        rest.starts_with("+=")
            || rest.starts_with("-=")
            || (rest.starts_with('=') && !rest.starts_with("=="))
            || rest.starts_with(".fetch_")
            || rest.starts_with(".store")
    }) || text.contains(&format!("{field}: self."))
        || text.contains(&format!("&mut self.{field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(code: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let sources = [
            SourceFile {
                path: "net/src/metrics.rs".into(),
                text: "pub struct M {\n    pub drops: u64,\n}\n".into(),
            },
            SourceFile { path: "net/src/fast.rs".into(), text: code.into() },
        ];
        check(&sources, &mut findings);
        findings
    }

    #[test]
    fn a_counter_that_nobody_changes_is_found() {
        assert_eq!(findings("if m.drops == 1 {}").len(), 1);
        assert!(findings("self.metrics.drops += 1;").is_empty());
    }
}
