//! Tests of the state transitions.

use std::convert::Infallible;

use super::*;

const ROTATION: Rotation = Rotation {
    validity: Duration::from_secs(1000),
    renew_before: Duration::from_secs(300),
    trust_delay: Duration::from_secs(60),
};

fn names(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the next state at `now` for an operator that serves `served`, where the API server calls under
/// the names `called`; certificates have no content.
fn next_with(
    state: Option<&RotationState>,
    now: u64,
    (wanted, called): (&str, &str),
    served: Option<&CertBundle>,
    trusted: bool,
) -> Option<RotationState> {
    let (wanted, called) = (names(wanted), names(called));
    let facts = RotationFacts {
        now,
        names: &wanted.union(&called).cloned().collect(),
        called_names: &called,
        served,
        trusted,
        rotation: &ROTATION,
    };
    let create = |names: &BTreeSet<String>| {
        Ok::<_, Infallible>(CertBundle {
            ca: format!("ca {now}\n"),
            certificate: format!("certificate {now}"),
            key: String::new(),
            names: names.clone(),
            not_after: now + ROTATION.validity.as_secs(),
        })
    };
    match next_state(state, &facts, create) {
        Ok(next) => next,
        Err(never) => match never {},
    }
}

/// Returns the next state without webhook names.
fn next(state: Option<&RotationState>, now: u64, wanted: &str, trusted: bool) -> Option<RotationState> {
    next_with(state, now, (wanted, ""), None, trusted)
}

#[test]
fn a_new_ca_is_trusted_everywhere_for_the_trust_delay_before_it_serves() {
    let first = next(None, 0, "a", false).unwrap();
    assert_eq!(first.bundle(), "ca 0\n");
    assert!(next(Some(&first), 699, "a", true).is_none());
    assert_eq!(first.pause(699, &ROTATION), Duration::from_secs(1));

    let staged = next(Some(&first), 700, "a", true).unwrap();
    assert_eq!(staged.current.certificate, "certificate 0");
    assert_eq!(staged.bundle(), "ca 0\nca 700\n");
    assert!(
        next(Some(&staged), 900, "a", false).is_none(),
        "no API server trusts it yet"
    );

    let trusted = next(Some(&staged), 900, "a", true).unwrap();
    assert_eq!(trusted.current.certificate, "certificate 0");
    assert_eq!(trusted.pause(900, &ROTATION), Duration::from_secs(60));
    assert!(next(Some(&trusted), 959, "a", true).is_none());

    let used = next(Some(&trusted), 960, "a", true).unwrap();
    assert_eq!(used.current.certificate, "certificate 700");
    assert_eq!(used.bundle(), "ca 700\nca 0\n");
    assert!(next(Some(&used), 961, "a", true).is_none());
}

#[test]
fn the_trust_delay_restarts_if_the_ca_was_removed_meanwhile() {
    let staged = next(Some(&next(None, 0, "a", false).unwrap()), 700, "a", true).unwrap();
    let trusted = next(Some(&staged), 800, "a", true).unwrap();
    let removed = next(Some(&trusted), 860, "a", false).unwrap();
    assert!(removed == staged);
    let again = next(Some(&removed), 861, "a", true).unwrap();
    assert!(next(Some(&again), 920, "a", true).is_none());
}

#[test]
fn an_expired_certificate_is_replaced_at_once_by_the_staged_one_if_any() {
    let first = next(None, 0, "a", false).unwrap();
    let second = next(Some(&first), 1000, "a", false).unwrap();
    assert_eq!(second.current.certificate, "certificate 1000");
    let staged = next(Some(&first), 700, "a", true).unwrap();
    let second = next(Some(&staged), 1000, "a", false).unwrap();
    assert_eq!(second.current.certificate, "certificate 700");
}

#[test]
fn a_certificate_for_additional_names_waits_for_the_trust_delay() {
    let first = next_with(None, 0, ("a", "b"), None, false).unwrap();
    assert_eq!(first.current.names, names("a b"));
    // The API server calls under another name, and one operator has a further name in its settings.
    let staged = next_with(Some(&first), 1, ("a", "b c"), None, true).unwrap();
    assert_eq!(staged.current.names, names("a b"));
    let both = next_with(Some(&staged), 2, ("a d", "b c"), None, true).unwrap();
    assert_eq!(both.current.names, names("a b"));
    for wanted in ["a", "a d"] {
        assert!(next_with(Some(&both), 3, (wanted, "b c"), None, false).is_none());
    }
    let trusted = next_with(Some(&both), 3, ("a", "b c"), None, true).unwrap();
    assert!(next_with(Some(&trusted), 62, ("a", "b c"), None, true).is_none());
    let used = next_with(Some(&trusted), 63, ("a", "b c"), None, true).unwrap();
    assert_eq!(used.current.names, names("a b c d"));
    assert_eq!(used.bundle(), "ca 2\nca 0\n");
}

#[test]
fn the_trust_delay_is_skipped_if_no_called_name_is_served() {
    let first = next_with(None, 0, ("a", "b"), None, false).unwrap();
    let staged = next_with(Some(&first), 1, ("a", "c d"), None, true).unwrap();
    assert!(next_with(Some(&staged), 1, ("a", "c d"), None, false).is_none());
    let used = next_with(Some(&staged), 1, ("a", "c d"), None, true).unwrap();
    assert_eq!(used.current.names, names("a b c d"));
}

#[test]
fn a_deleted_secret_is_created_again_from_the_served_certificate_and_then_renewed() {
    let first = next(None, 0, "a", false).unwrap();
    let recovered = next_with(None, 5, ("a", ""), Some(&first.current), false).unwrap();
    assert!(recovered.current == first.current);
    assert_eq!(recovered.bundle(), "ca 0\nca 5\n");
    let ended = next_with(None, 1000, ("a", ""), Some(&first.current), false).unwrap();
    assert_eq!(ended.current.certificate, "certificate 1000");
}

#[test]
fn the_stored_state_round_trips_and_a_newer_format_is_rejected() {
    let state = next(Some(&next(None, 0, "a", false).unwrap()), 700, "a", true).unwrap();
    let text = serde_json::to_string(&state).unwrap();
    assert!(RotationState::read(text.as_bytes()).unwrap() == state);
    let newer = text.replace("\"format\":1", "\"format\":2");
    assert!(matches!(
        RotationState::read(newer.as_bytes()),
        Err(StateError::Newer { format: 2 })
    ));
    assert!(matches!(RotationState::read(b"{}"), Err(StateError::Invalid(_))));
}
