//! The moves of a state.

use std::convert::Infallible;

use super::*;

const ROTATION: Rotation = Rotation {
    validity: Duration::from_secs(1000),
    before: Duration::from_secs(300),
    settle: Duration::from_secs(60),
};

fn names(text: &str) -> BTreeSet<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// One move at `now`, with certificates that have no content.
fn moved(state: Option<&State>, now: u64, wanted: &str, trusted: bool) -> Option<State> {
    let facts = Facts {
        now,
        names: &names(wanted),
        trusted,
        rotation: &ROTATION,
    };
    let make = |names: &BTreeSet<String>| {
        Ok::<_, Infallible>(Generation {
            ca: format!("ca {now}\n"),
            certificate: format!("certificate {now}"),
            key: String::new(),
            names: names.clone(),
            not_after: now + ROTATION.validity.as_secs(),
        })
    };
    match step(state, &facts, make) {
        Ok(next) => next,
        Err(never) => match never {},
    }
}

#[test]
fn a_new_authority_is_trusted_everywhere_for_a_while_before_it_is_used() {
    let first = moved(None, 0, "a", false).unwrap();
    assert_eq!(first.bundle(), "ca 0\n");
    assert!(moved(Some(&first), 699, "a", true).is_none());
    assert_eq!(first.pause(699, &ROTATION), Duration::from_secs(1));

    let staged = moved(Some(&first), 700, "a", true).unwrap();
    assert_eq!(staged.current.certificate, "certificate 0");
    assert_eq!(staged.bundle(), "ca 0\nca 700\n");
    assert!(
        moved(Some(&staged), 900, "a", false).is_none(),
        "nobody trusts it yet"
    );

    let trusted = moved(Some(&staged), 900, "a", true).unwrap();
    assert_eq!(trusted.current.certificate, "certificate 0");
    assert_eq!(trusted.pause(900, &ROTATION), Duration::from_secs(60));
    assert!(moved(Some(&trusted), 959, "a", true).is_none());
    assert!(
        moved(Some(&trusted), 960, "a", false).is_none(),
        "somebody took it away again"
    );

    let used = moved(Some(&trusted), 960, "a", true).unwrap();
    assert_eq!(used.current.certificate, "certificate 700");
    assert_eq!(used.bundle(), "ca 700\nca 0\n");
    assert!(moved(Some(&used), 961, "a", true).is_none());
}

#[test]
fn what_has_ended_is_replaced_at_once() {
    let first = moved(None, 0, "a", false).unwrap();
    let second = moved(Some(&first), 1000, "a", false).unwrap();
    assert_eq!(second.current.certificate, "certificate 1000");
}

#[test]
fn operators_of_different_names_come_to_one_certificate_for_all_of_them() {
    let first = moved(None, 0, "a b", false).unwrap();
    let second = moved(Some(&first), 1, "b c", false).unwrap();
    assert_eq!(second.current.names, names("a b c"));
    assert!(moved(Some(&second), 2, "a b", false).is_none());
    assert!(moved(Some(&second), 2, "b c", false).is_none());
}

#[test]
fn what_is_written_is_read_again_and_what_a_newer_operator_wrote_is_left_alone() {
    let state = moved(Some(&moved(None, 0, "a", false).unwrap()), 700, "a", true).unwrap();
    let text = serde_json::to_string(&state).unwrap();
    assert!(State::read(text.as_bytes()).unwrap() == state);
    let newer = text.replace("\"format\":1", "\"format\":2");
    assert!(matches!(
        State::read(newer.as_bytes()),
        Err(StateError::Newer { format: 2 })
    ));
    assert!(matches!(State::read(b"{}"), Err(StateError::Broken(_))));
}
