//! Spellings and sums, as a Redis 7.0 server gives them.
//!
//! The expected texts were taken from redis-server. Properties compare the fast paths with the
//! standard library where both define the same.

use proptest::prelude::*;

use super::*;

#[test]
fn an_integer_has_one_spelling() {
    for (text, value) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("99999999999999999999", None),
        ("-0", None),
        ("01", None),
        ("+1", None),
        (" 1", None),
        ("1 ", None),
        ("", None),
        ("-", None),
        ("1.0", None),
    ] {
        assert_eq!(parse_integer(text.as_bytes()), value, "{text}");
    }
}

#[test]
fn doubles_are_read_like_strtod() {
    for (text, value) in [
        ("1", Some(1.0)),
        ("+1.5e3", Some(1500.0)),
        (".5", Some(0.5)),
        ("5.", Some(5.0)),
        ("0x1p3", Some(8.0)),
        ("-0X.8", Some(-0.5)),
        ("inf", Some(f64::INFINITY)),
        ("-Infinity", Some(f64::NEG_INFINITY)),
        ("0e999", Some(0.0)),
        ("4.9e-324", Some(5e-324)),
        ("nan", None),
        ("1e400", None),
        ("1e-400", None),
        (" 1", None),
        ("1 ", None),
        ("", None),
        (".", None),
        ("1e", None),
        ("0x", None),
    ] {
        assert_eq!(parse_float(text.as_bytes()), value, "{text}");
    }
}

#[test]
fn doubles_are_written_with_seventeen_digits() {
    for (value, text) in [
        (0.1, "0.10000000000000001"),
        (1.5e-7, "1.4999999999999999e-07"),
        (1e17, "1e+17"),
        (123_456_789_012_345_678.0, "1.2345678901234568e+17"),
        (12_345_678_901_234_567.0, "12345678901234568"),
        (3e20, "3e+20"),
        (-0.0, "-0"),
        (0.0, "0"),
        (3.0, "3"),
        (-2.5, "-2.5"),
        (0.0001, "0.0001"),
        (1e-5, "1.0000000000000001e-05"),
        (1e-300, "1e-300"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(format_double(value), text);
        assert_eq!(&*print_double(value), text.as_bytes());
    }
}

fn sum(a: &str, b: &str) -> Option<String> {
    let sum = Extended::parse(a.as_bytes())? + Extended::parse(b.as_bytes())?;
    sum.is_finite().then(|| sum.print())
}

#[test]
fn sums_are_those_of_eighty_bit_floats() {
    for (a, b, expected) in [
        ("3.0e3", "200", Some("3200")),
        ("0.1", "0.2", Some("0.3")),
        ("1e20", "0.1", Some("100000000000000000000")),
        ("0x10", "1", Some("17")),
        ("1e-30", "1e-30", Some("0")),
        ("-1e-30", "-1e-30", Some("0")),
        ("123456789.123456789", "1e-9", Some("123456789.12345678999554366")),
        ("0", "1.23e-10", Some("0.000000000123")),
        ("5", "-5", Some("0")),
        ("1e5000", "1", None),
        ("1e4932", "1e4932", None),
        ("inf", "1", None),
        ("nan", "1", None),
        ("", "1", None),
        ("1", " 1", None),
    ] {
        assert_eq!(sum(a, b).as_deref(), expected, "{a} + {b}");
    }
    let huge = sum("10.5", "1e300").unwrap();
    assert!(huge.starts_with("1000000000000000000008997324079559193870523944273290"), "{huge}");
    assert_eq!(huge.len(), 301);
}

proptest! {
    #[test]
    fn a_written_double_reads_back_as_itself(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        prop_assume!(!value.is_nan());
        let text = format_double(value);
        prop_assert_eq!(parse_float(text.as_bytes()).map(f64::to_bits), Some(bits));
    }

    #[test]
    fn a_written_integer_reads_back_as_itself(value in any::<i64>()) {
        let mut digits = Digits::default();
        prop_assert_eq!(parse_integer(digits.write(value)), Some(value));
    }

    /// Where the exact sum of integers and of cents fits the format, it is exact.
    #[test]
    fn sums_of_integers_are_exact(a in any::<i32>(), b in any::<i32>(), shift in 0..30u32) {
        let scale = f64::from(1u32 << shift);
        let (x, y) = (f64::from(a) / scale, f64::from(b) / scale);
        let expected = (f64::from(a) + f64::from(b)) / scale;
        let sum = sum(&format!("{x:.40}"), &format!("{y:.40}")).unwrap();
        let printed = format!("{expected:.17}");
        let printed = printed.trim_end_matches('0').trim_end_matches('.');
        prop_assert_eq!(sum, if printed == "-0" { "0" } else { printed });
    }

    #[test]
    fn no_text_panics(text in "[-+]?[0-9a-fx.einp]{0,20}") {
        if let Some(number) = Extended::parse(text.as_bytes()) {
            number.print();
            number.to_f64();
        }
        parse_float(text.as_bytes());
    }
}
