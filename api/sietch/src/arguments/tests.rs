use super::*;

fn parse(line: &str) -> Result<Arguments, ArgumentError> {
    Arguments::parse(line.split_whitespace().map(str::to_owned))
}

#[test]
fn options_and_positional_words_are_separated() {
    let arguments = parse("--vnic web file --port=80 --backend a --backend b").expect("it is well-formed");
    assert_eq!(arguments.value("--vnic"), Ok(Some("web".to_owned())));
    assert_eq!(arguments.value("--port"), Ok(Some(80_u16)));
    assert_eq!(arguments.values("--backend"), Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(arguments.value::<u16>("--absent"), Ok(None));
    assert_eq!(arguments.positional(), ["file"]);
}

#[test]
fn an_invalid_option_is_named() {
    assert_eq!(parse("--vnic"), Err(ArgumentError::NoValue("--vnic".into())));
    let wrong = parse("--port many").expect("it is well-formed").value::<u16>("--port");
    assert_eq!(wrong, Err(ArgumentError::BadValue { name: "--port".into(), value: "many".into() }));
    assert!(matches!(Arguments::default().acquire(), Err(Error::Arguments(ArgumentError::NoDevice))));
}
