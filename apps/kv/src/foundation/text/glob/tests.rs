//! Patterns match what they match in Redis, in bounded time.

use proptest::prelude::*;

use super::*;

#[test]
fn patterns_match_as_in_redis() {
    for (pattern, text, expected) in [
        ("*", "abc", true),
        ("*", "", false),
        ("", "", true),
        ("a*c", "abbbc", true),
        ("a*c", "abbbd", false),
        ("a?c", "abc", true),
        ("a?", "a", false),
        ("a*", "a", true),
        ("a**", "a", true),
        ("h[ae]llo", "hallo", true),
        ("h[^e]llo", "hello", false),
        ("h[a-c]llo", "hbllo", true),
        ("h[c-a]llo", "hbllo", true),
        ("h[abc", "ha", true),
        ("h[a\\]]", "h]", true),
        ("\\*", "*", true),
        ("\\*", "a", false),
        ("a\\", "a\\", true),
        ("*a*b*c*", "xxaxxbxxcxx", true),
        ("*aab", "aaaab", true),
        ("[]a]", "a]", false),
    ] {
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
    }
    assert!(matches_ignoring_case(b"MAX*[A-C]", b"maxmemB"));
    assert!(!matches(b"MAX*", b"maxmemory"));
}

#[test]
fn a_hostile_pattern_takes_bounded_time() {
    let pattern = b"a*".repeat(1000);
    let mut text = vec![b'a'; 20_000];
    text.push(b'b');
    assert!(!matches(&[&pattern[..], b"c"].concat(), &text));
}

/// The definition, straight and slow.
fn slow(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => slow(&pattern[1..], text) || !text.is_empty() && slow(pattern, &text[1..]),
        (Some(_), Some(&byte)) => {
            one(pattern, byte, false).is_some_and(|length| slow(&pattern[length..], &text[1..]))
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn going_back_to_the_last_star_is_enough(pattern in "[ab*?\\[\\]^-]{0,9}", text in "[ab]{1,9}") {
        prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
    }
}
