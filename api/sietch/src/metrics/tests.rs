use super::*;
use sietch_protocol::metrics;

fn visible(page: &Metrics) -> Vec<(String, u64)> {
    let read = metrics::read(page).expect("our own page");
    read.into_iter().map(|metric| (metric.name, metric.value)).collect()
}

fn page() -> Metrics {
    Metrics::new("test", &[("a.b", Kind::Counter), ("c", Kind::Gauge)]).expect("valid names")
}

#[test]
fn a_value_is_visible_once_published_and_the_rate_is_bounded() {
    let mut page = page();
    page.set(0, 5);
    assert_eq!(visible(&page), [("a.b".into(), 0), ("c".into(), 0)]);
    assert_eq!(page.publish(10).expect("publish"), None);
    assert_eq!(visible(&page), [("a.b".into(), 5), ("c".into(), 0)]);

    page.set_all(0, [6, 7, 8]);
    assert_eq!(page.publish(11).expect("publish"), Some(10 + INTERVAL));
    assert_eq!(visible(&page)[0].1, 5);
    assert_eq!(page.publish(10 + INTERVAL).expect("publish"), None);
    assert_eq!(visible(&page), [("a.b".into(), 6), ("c".into(), 7)]);
}

#[test]
fn a_loop_with_nothing_new_needs_no_timer() {
    let mut page = page();
    assert_eq!(page.publish(1).expect("publish"), None);
    page.set(1, 3);
    assert_eq!(page.publish(2).expect("publish"), None);
    page.set(1, 3);
    assert_eq!(page.publish(3).expect("publish"), None);
}

#[test]
fn a_name_that_could_not_be_shown_is_refused() {
    assert!(Metrics::new("test", &[("a\x1b[2J", Kind::Counter)]).is_err());
}
