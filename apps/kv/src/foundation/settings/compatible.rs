//! Settings that tools set, and that have no effect here.
//!
//! They are accepted with the values that Redis accepts, and CONFIG GET shows the last one. All
//! other settings have their effect, or are refused. The list is in CONFIG HELP and in
//! `docs/howto/serve-redis-faster.md`.

/// What a setting may be.
#[derive(Debug, Clone, Copy)]
enum Values {
    YesOrNo,
    Words(&'static [&'static str]),
    Between(i64, i64),
}

/// Names and values. Keys are always freed and expired in slices, and there is no log of messages.
const COMPATIBLE: &[(&str, Values)] = &[
    ("active-expire-effort", Values::Between(1, 10)),
    ("hz", Values::Between(0, i32::MAX as i64)),
    ("lazyfree-lazy-eviction", Values::YesOrNo),
    ("lazyfree-lazy-expire", Values::YesOrNo),
    ("lazyfree-lazy-server-del", Values::YesOrNo),
    ("lazyfree-lazy-user-del", Values::YesOrNo),
    ("lazyfree-lazy-user-flush", Values::YesOrNo),
    ("loglevel", Values::Words(&["debug", "verbose", "notice", "warning"])),
];

/// The names, in order.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    COMPATIBLE.iter().map(|&(name, _)| name)
}

/// The value of one of these settings as CONFIG GET shows it, if this is one of them.
///
/// # Errors
/// Redis' wording for a value that is none.
pub(super) fn value(name: &str, value: &str) -> Option<Result<String, String>> {
    let &(_, values) = COMPATIBLE.iter().find(|(known, _)| *known == name)?;
    Some(match values {
        Values::YesOrNo => yes_or_no(value).map(|yes| if yes { "yes" } else { "no" }.to_owned()),
        Values::Between(least, most) => number(value, least, most).map(|number| number.to_string()),
        Values::Words(words) => {
            let word = words.iter().find(|word| word.eq_ignore_ascii_case(value));
            let list = || format!("argument(s) must be one of the following: {}", words.join(", "));
            word.map(|&word| word.to_owned()).ok_or_else(list)
        }
    })
}

/// What `yes` and `no` mean.
///
/// # Errors
/// Redis' wording for any other word.
pub(super) fn yes_or_no(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("argument must be 'yes' or 'no'".to_owned()),
    }
}

/// A whole number in a range.
///
/// # Errors
/// Redis' wording for anything else.
pub(super) fn number(value: &str, least: i64, most: i64) -> Result<i64, String> {
    let number =
        value.parse::<i64>().map_err(|_| "argument couldn't be parsed into an integer".to_owned())?;
    within(number, least, most)
}

/// `number`, if it is in a range.
///
/// # Errors
/// Redis' wording.
pub(super) fn within(number: i64, least: i64, most: i64) -> Result<i64, String> {
    let fits = (least..=most).contains(&number);
    fits.then_some(number).ok_or_else(|| format!("argument must be between {least} and {most} inclusive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_list_the_settings_without_effect() {
        let page = include_str!("../../../../../docs/howto/serve-redis-faster.md");
        let list: Vec<String> = names().map(|name| format!("`{name}`")).collect();
        assert!(page.contains(&list.join(", ")), "the page must have: {}", list.join(", "));
    }

    #[test]
    fn a_setting_without_effect_takes_the_values_that_redis_takes() {
        let shown = |name: &str, given: &str| value(name, given).and_then(Result::ok);
        assert_eq!(shown("loglevel", "DEBUG").as_deref(), Some("debug"));
        assert_eq!(shown("lazyfree-lazy-expire", "Yes").as_deref(), Some("yes"));
        assert_eq!(shown("hz", "100").as_deref(), Some("100"));
        for (name, given) in
            [("loglevel", "loud"), ("lazyfree-lazy-expire", "1"), ("active-expire-effort", "11"), ("hz", "x")]
        {
            assert_eq!(shown(name, given), None, "{name} {given}");
        }
    }
}
