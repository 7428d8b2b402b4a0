//! The moves of a state.

use std::convert::Infallible;

use super::*;

const ROTATION: Rotation = Rotation {
    validity: Duration::from_secs(1000),
    before: Duration::from_secs(300),
    settle: Duration::from_secs(60),
};

fn names(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// One move at `now` of an operator that serves with `served`, where the API server asks under `asked`, with certificates that
/// have no content.
fn moved_by(
    state: Option<&RotationState>,
    now: u64,
    (wanted, asked): (&str, &str),
    served: Option<&CertBundle>,
    trusted: bool,
) -> Option<RotationState> {
    let (wanted, asked) = (names(wanted), names(asked));
    let facts = RotationFacts {
        now,
        names: &wanted.union(&asked).cloned().collect(),
        asked: &asked,
        served,
        trusted,
        rotation: &ROTATION,
    };
    let make = |names: &BTreeSet<String>| {
        Ok::<_, Infallible>(CertBundle {
            ca: format!("ca {now}\n"),
            certificate: format!("certificate {now}"),
            key: String::new(),
            names: names.clone(),
            not_after: now + ROTATION.validity.as_secs(),
        })
    };
    match next_state(state, &facts, make) {
        Ok(next) => next,
        Err(never) => match never {},
    }
}

/// The same where the API server asks nobody.
fn moved(state: Option<&RotationState>, now: u64, wanted: &str, trusted: bool) -> Option<RotationState> {
    moved_by(state, now, (wanted, ""), None, trusted)
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

    let used = moved(Some(&trusted), 960, "a", true).unwrap();
    assert_eq!(used.current.certificate, "certificate 700");
    assert_eq!(used.bundle(), "ca 700\nca 0\n");
    assert!(moved(Some(&used), 961, "a", true).is_none());
}

#[test]
fn the_time_begins_anew_when_somebody_took_the_authority_away_meanwhile() {
    let staged = moved(Some(&moved(None, 0, "a", false).unwrap()), 700, "a", true).unwrap();
    let trusted = moved(Some(&staged), 800, "a", true).unwrap();
    let taken = moved(Some(&trusted), 860, "a", false).unwrap();
    assert!(taken == staged);
    let again = moved(Some(&taken), 861, "a", true).unwrap();
    assert!(moved(Some(&again), 920, "a", true).is_none());
}

#[test]
fn what_has_ended_is_replaced_at_once_by_what_was_to_come_if_there_is_that() {
    let first = moved(None, 0, "a", false).unwrap();
    let second = moved(Some(&first), 1000, "a", false).unwrap();
    assert_eq!(second.current.certificate, "certificate 1000");
    let staged = moved(Some(&first), 700, "a", true).unwrap();
    let second = moved(Some(&staged), 1000, "a", false).unwrap();
    assert_eq!(second.current.certificate, "certificate 700");
}

#[test]
fn a_certificate_for_further_names_is_trusted_for_a_while_before_it_is_used() {
    let first = moved_by(None, 0, ("a", "b"), None, false).unwrap();
    assert_eq!(first.current.names, names("a b"));
    // The API server asks under another name besides, and one operator is set to a further one.
    let staged = moved_by(Some(&first), 1, ("a", "b c"), None, true).unwrap();
    assert_eq!(staged.current.names, names("a b"));
    let both = moved_by(Some(&staged), 2, ("a d", "b c"), None, true).unwrap();
    assert_eq!(both.current.names, names("a b"));
    for wanted in ["a", "a d"] {
        assert!(moved_by(Some(&both), 3, (wanted, "b c"), None, false).is_none());
    }
    let trusted = moved_by(Some(&both), 3, ("a", "b c"), None, true).unwrap();
    assert!(moved_by(Some(&trusted), 62, ("a", "b c"), None, true).is_none());
    let used = moved_by(Some(&trusted), 63, ("a", "b c"), None, true).unwrap();
    assert_eq!(used.current.names, names("a b c d"));
    assert_eq!(used.bundle(), "ca 2\nca 0\n");
}

#[test]
fn where_no_name_that_is_asked_under_is_answered_it_is_not_waited_for() {
    let first = moved_by(None, 0, ("a", "b"), None, false).unwrap();
    let staged = moved_by(Some(&first), 1, ("a", "c d"), None, true).unwrap();
    assert!(moved_by(Some(&staged), 1, ("a", "c d"), None, false).is_none());
    let used = moved_by(Some(&staged), 1, ("a", "c d"), None, true).unwrap();
    assert_eq!(used.current.names, names("a b c d"));
}

#[test]
fn a_secret_that_is_taken_away_is_made_again_with_what_is_served_and_then_renewed() {
    let first = moved(None, 0, "a", false).unwrap();
    let lost = moved_by(None, 5, ("a", ""), Some(&first.current), false).unwrap();
    assert!(lost.current == first.current);
    assert_eq!(lost.bundle(), "ca 0\nca 5\n");
    let ended = moved_by(None, 1000, ("a", ""), Some(&first.current), false).unwrap();
    assert_eq!(ended.current.certificate, "certificate 1000");
}

#[test]
fn what_is_written_is_read_again_and_what_a_newer_operator_wrote_is_left_alone() {
    let state = moved(Some(&moved(None, 0, "a", false).unwrap()), 700, "a", true).unwrap();
    let text = serde_json::to_string(&state).unwrap();
    assert!(RotationState::read(text.as_bytes()).unwrap() == state);
    let newer = text.replace("\"format\":1", "\"format\":2");
    assert!(matches!(
        RotationState::read(newer.as_bytes()),
        Err(StateError::Newer { format: 2 })
    ));
    assert!(matches!(RotationState::read(b"{}"), Err(StateError::Broken(_))));
}
