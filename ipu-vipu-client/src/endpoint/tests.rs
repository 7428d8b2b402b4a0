//! Addresses of controllers: valid and invalid texts, and round trips.

use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(text: &str, host: &str, port: u16, label: Option<(&str, &str)>) {
    let endpoint: ControllerEndpoint = text.parse().unwrap();
    let found = endpoint.label().map(|label| (label.key(), label.value()));
    assert_eq!(
        (endpoint.host(), endpoint.port(), found),
        (host, port, label),
        "{text}"
    );
}

#[test]
fn port_and_label_are_optional() {
    check(
        "pod001:8090:ipunode=node1",
        "pod001",
        8090,
        Some(("ipunode", "node1")),
    );
    check(
        "pod002:8091:ipunode=node2",
        "pod002",
        8091,
        Some(("ipunode", "node2")),
    );
    check(
        "10.5.212.116:8090:ipunode=true",
        "10.5.212.116",
        8090,
        Some(("ipunode", "true")),
    );
    check(
        "10.5.212.116:ipunode=true",
        "10.5.212.116",
        8090,
        Some(("ipunode", "true")),
    );
    check("localhost:8191", "localhost", 8191, None);
    check("vipu-server.example.org", "vipu-server.example.org", 8090, None);
    check("  pod1  ", "pod1", 8090, None);
    check("POD1.Example.ORG:1", "pod1.example.org", 1, None);
    check(
        "pod1:graphcore.ai/vipu-ctrl=a_b.c",
        "pod1",
        8090,
        Some(("graphcore.ai/vipu-ctrl", "a_b.c")),
    );
    check("pod1:8090:dedicated=", "pod1", 8090, Some(("dedicated", "")));
}

#[test]
fn an_ipv6_address_is_in_brackets() {
    check("[fe80::1]:9000:a=b", "fe80::1", 9000, Some(("a", "b")));
    check("[::1]", "::1", 8090, None);
    check("[::1]:a=b", "::1", 8090, Some(("a", "b")));
    let endpoint: ControllerEndpoint = "[::1]:9000".parse().unwrap();
    assert_eq!(endpoint.name().as_str(), "[::1]:9000");
}

#[track_caller]
fn refused(text: &str) -> EndpointError {
    match text.parse::<ControllerEndpoint>() {
        Ok(endpoint) => panic!("{text:?} was parsed as {endpoint:?}"),
        Err(error) => error,
    }
}

#[test]
fn an_invalid_address_is_refused_with_the_invalid_part() {
    for text in ["", "  ", ":8090", ":8090:a=b", ":a=b"] {
        assert!(matches!(refused(text), EndpointError::NoHost { .. }), "{text:?}");
    }
    for text in [
        "-pod",
        "po d",
        "pod..x",
        "fe80::1",
        "[fe80::1",
        "[pod]:1",
        "[::1]x",
        "http://pod",
        "<ADDR>:a=b",
        "pod/x",
    ] {
        assert!(matches!(refused(text), EndpointError::BadHost { .. }), "{text:?}");
    }
    for text in [
        "pod:",
        "pod:0",
        "pod:65536",
        "pod:+1",
        "pod:x",
        "pod::a=b",
        "pod:8090x:a=b",
        "pod: 1",
    ] {
        assert!(matches!(refused(text), EndpointError::BadPort { .. }), "{text:?}");
    }
    for text in [
        "pod:1:",
        "pod:1:a",
        "pod:1:=b",
        "pod:1:a=b=c",
        "pod:a b=c",
        "pod:-a=b",
        "pod:1:a=b-",
        "pod:/a=b",
        "pod:x/=b",
    ] {
        assert!(
            matches!(refused(text), EndpointError::BadLabel { .. }),
            "{text:?}"
        );
    }
    assert_eq!(
        refused("pod:1:a=b:c:d"),
        EndpointError::TooManyParts { rest: "c:d".into() }
    );
    let long = "x".repeat(64);
    assert!(matches!(
        refused(&format!("pod:{long}=b")),
        EndpointError::BadLabel { .. }
    ));
    assert!(matches!(refused(&long), EndpointError::BadHost { .. }));
}

#[test]
fn the_lists_in_the_documents_parse() {
    for text in [
        "pod001:8090:ipunode=node1,pod002:8091:ipunode=node2",
        r"pod001:8090:ipunode=node1\,pod002:8091:ipunode=node2",
        "pod001:8090:ipunode=node1, pod002:8091:ipunode=node2 ",
    ] {
        let list = parse_controllers(text).unwrap();
        let printed: Vec<_> = list.iter().map(ToString::to_string).collect();
        assert_eq!(
            printed,
            ["pod001:8090:ipunode=node1", "pod002:8091:ipunode=node2"],
            "{text}"
        );
    }
}

#[test]
fn an_invalid_list_is_refused_with_the_position() {
    assert_eq!(parse_controllers(" "), Err(ControllerListError::Empty));
    for (text, at) in [("pod1,", 2), (",pod1", 1), ("a,,b", 2), ("a,b:0,c", 2)] {
        match parse_controllers(text) {
            Err(ControllerListError::Entry { position, .. }) => assert_eq!(position, at, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_duplicate_controller_is_refused_for_any_label_or_spelling() {
    for text in ["a,b,a", "a:8090:x=y,b,A:8090:x=z", r"a:8090\,b\,a:x=y"] {
        let name = ControllerName::new("a:8090").unwrap();
        assert_eq!(
            parse_controllers(text),
            Err(ControllerListError::Duplicate {
                position: 3,
                first: 1,
                name
            }),
            "{text}"
        );
    }
    assert!(parse_controllers("a:1,a:2").is_ok());
}

#[test]
fn a_socket_address_is_an_endpoint_unless_its_port_is_zero() {
    let endpoint = ControllerEndpoint::try_from(SocketAddr::from(([127, 0, 0, 1], 7))).unwrap();
    assert_eq!(endpoint.to_string(), "127.0.0.1:7");
    assert!(ControllerEndpoint::try_from(SocketAddr::from(([127, 0, 0, 1], 0))).is_err());
}

proptest! {
    #[test]
    fn a_printed_endpoint_parses_to_itself(
        host in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\\.[a-z0-9]{1,9}){0,3}",
        port in 1_u16..,
        label in proptest::option::of(("([a-z]{1,9}\\.[a-z]{2}/)?[A-Za-z0-9]{1,20}", "[A-Za-z0-9._-]{0,20}")),
    ) {
        let mut endpoint = ControllerEndpoint::new(&host, port).unwrap();
        if let Some((key, value)) = label
            && let Ok(label) = NodeLabel::new(&key, &value)
        {
            endpoint = endpoint.with_label(label);
        }
        prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }

    #[test]
    fn the_parser_never_panics(text in "\\PC{0,40}") {
        let _ = parse_controllers(&text);
    }
}
