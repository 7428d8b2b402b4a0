//! Limits of namespaces and their clients.

use ipu_core::JobKey;
use serde_json::{Value, json};

use crate::binary::{http, start};
use crate::server::RawConnection;
use crate::support::Harness;

fn body(namespace: &str, name: &str, size: u32) -> Value {
    json!({"owner": {"kind": "Job", "namespace": namespace, "name": name, "uid": "1"}, "size": size})
}

impl Harness {
    /// Requests a partition without waiting for it. Accepted requests are active, pending or queued.
    async fn request(&self, id: &str, body: &Value) -> (u16, Value) {
        let path = format!("/v1/partitions/{id}");
        let (status, document) = self.call("PUT", &path, &body.to_string()).await;
        (status.as_u16(), document)
    }
}

#[track_caller]
fn assert_accepted((status, document): (u16, Value)) {
    assert!(matches!(status, 200 | 202), "{document}");
}

#[tokio::test]
async fn a_namespace_that_queues_too_many_requests_is_refused_and_others_are_served() {
    let harness = Harness::with("max-queued-per-namespace: 2").await;
    harness.put("all", "all", 32).await;
    for id in ["a0", "a1"] {
        assert_eq!(harness.request(id, &body("a", id, 4)).await.0, 202);
    }
    let (status, problem) = harness.request("a2", &body("a", "a2", 4)).await;
    assert_eq!((status, &problem["code"]), (409, &json!("NamespaceQueueFull")));
    assert_eq!(
        problem["detail"],
        "namespace a has 2 queued requests of at most 2"
    );
    assert!(
        problem["fix"]
            .as_str()
            .unwrap()
            .contains("max-queued-per-namespace")
    );
    assert_eq!(harness.request("b0", &body("b", "b0", 4)).await.0, 202);
    // A repeated request is not a new one, and a request that leaves the queue releases its slot.
    assert_eq!(harness.request("a1", &body("a", "a1", 4)).await.0, 202);
    harness.call("DELETE", "/v1/partitions/a1", "").await;
    assert_eq!(harness.request("a2", &body("a", "a2", 4)).await.0, 202);
}

#[tokio::test]
async fn the_namespaces_of_a_token_count_together() {
    let tokens =
        "0123456789abcdef-holder x x\n0123456789abcdef-team team a,b\n0123456789abcdef-other other b\n";
    let harness = Harness::with_tokens(tokens, &["--max-queued-per-namespace", "2"]).await;
    let request = async |token: &str, namespace: &str, id: &str, size: u32| {
        let path = format!("/v1/partitions/{id}");
        let body = body(namespace, id, size).to_string();
        let (status, document) = harness.call_as(token, "PUT", &path, &body).await;
        (status.as_u16(), document)
    };
    request("0123456789abcdef-holder", "x", "all", 32).await;
    for (namespace, id) in [("a", "a0"), ("b", "b0")] {
        assert_eq!(request("0123456789abcdef-team", namespace, id, 4).await.0, 202);
    }
    let (status, problem) = request("0123456789abcdef-team", "b", "b1", 4).await;
    assert_eq!((status, &problem["code"]), (409, &json!("NamespaceQueueFull")));
    assert_eq!(
        problem["detail"],
        "namespaces b, a together have 2 queued requests of at most 2"
    );
    assert_eq!(request("0123456789abcdef-other", "b", "b1", 4).await.0, 202);
}

#[tokio::test]
async fn a_priority_above_the_highest_of_the_namespace_names_field_value_rule_and_fix() {
    let harness = Harness::with("priorities: [{namespace: b, max-priority: 0}]").await;
    let with = |namespace: &str, priority: i32| {
        let mut body = body(namespace, "job", 4);
        body["priority"] = priority.into();
        body
    };
    let (status, problem) = harness.request("b0", &with("b", i32::MAX)).await;
    assert_eq!((status, &problem["code"]), (403, &json!("PriorityTooHigh")));
    assert_eq!(
        (
            &problem["field"],
            &problem["value"],
            &problem["rule"],
            &problem["fix"]
        ),
        (
            &json!("priority"),
            &json!("2147483647"),
            &json!("at most 0 for owners of namespace b"),
            &json!("use 0 or less; an administrator can raise it in priorities")
        )
    );
    assert_accepted(harness.request("a0", &with("a", i32::MAX)).await);
    assert_accepted(harness.request("b0", &with("b", 0)).await);
}

#[tokio::test]
async fn an_account_of_another_namespace_cannot_be_charged() {
    let quotas = "quotas: [{account: course-7, max-ipus: 8, namespaces: [a]}]";
    let harness = Harness::with(quotas).await;
    let charging = |namespace: &str, account: &str| {
        let mut body = body(namespace, "job", 4);
        body["account"] = account.into();
        body
    };
    let (status, problem) = harness.request("b0", &charging("b", "course-7")).await;
    assert_eq!((status, &problem["code"]), (403, &json!("AccountNotAllowed")));
    assert_eq!(
        (&problem["field"], &problem["value"]),
        (&json!("account"), &json!("course-7"))
    );
    assert_accepted(harness.request("a0", &charging("a", "course-7")).await);
    assert_accepted(harness.request("b0", &charging("b", "anything-else")).await);
}

#[tokio::test]
async fn account_and_allocation_are_short_and_need_no_escape() {
    let harness = Harness::new().await;
    for (field, value) in [
        ("account", "x".repeat(64)),
        ("account", "\"".into()),
        ("account", "a b".into()),
        ("allocation", "x".repeat(64)),
        ("allocation", "\\".into()),
    ] {
        let mut body = body("a", "job", 4);
        body[field] = value.into();
        let (status, problem) = harness.request("p", &body).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (422, &json!("InvalidValue"), &json!(field)),
            "{problem}"
        );
    }
    let mut body = body("a", "job", 4);
    body["account"] = "x".repeat(63).into();
    assert_accepted(harness.request("p", &body).await);
}

#[tokio::test]
async fn a_derived_partition_id_cannot_be_taken_by_another_owner() {
    let harness = Harness::new().await;
    let id = JobKey::new("a", "training", "1").unwrap().partition_id(0);
    let (status, problem) = harness.request(id.as_str(), &body("b", "training", 4)).await;
    assert_eq!(
        (status, &problem["code"]),
        (422, &json!("NotDerived")),
        "{problem}"
    );
    assert_accepted(harness.request(id.as_str(), &body("a", "training", 4)).await);
}

#[tokio::test]
async fn limits_come_from_flags_and_the_settings_file_which_is_reloaded() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("proxy.yaml");
    let settings = "sim: pod16\nsim-listen: 127.0.0.1:0\nlisten: 127.0.0.1:0\n";
    let limits =
        "priorities: [{max-priority: 0}]\nquotas: [{account: course-7, max-ipus: 8, namespaces: [a]}]\n";
    std::fs::write(&config, format!("{settings}{limits}")).unwrap();
    let config = config.to_str().unwrap();
    let running = start(&["--config", config, "--max-queued-per-namespace", "1", "-v=1"]).await;
    let http = http();
    let put = async |id: &str, body: Value| {
        let url = format!("{}/v1/partitions/{id}?wait=5s", running.url);
        let response = http.put(url).json(&body).send().await.unwrap();
        response.json::<Value>().await.unwrap()
    };
    let mut urgent = body("b", "urgent", 16);
    urgent["priority"] = 1.into();
    assert_eq!(put("urgent", urgent.clone()).await["code"], "PriorityTooHigh");
    let mut charging = body("b", "charging", 4);
    charging["account"] = "course-7".into();
    assert_eq!(put("charging", charging).await["code"], "AccountNotAllowed");

    std::fs::write(config, settings).unwrap();
    while put("urgent", urgent.clone()).await["code"] == "PriorityTooHigh" {
        tokio::task::yield_now().await;
    }
    assert_eq!(put("urgent", urgent).await["state"], "active");
    // The flag still applies.
    let put = async |id: &str| {
        let url = format!("{}/v1/partitions/{id}", running.url);
        let response = http.put(url).json(&body("a", id, 4)).send().await.unwrap();
        response.json::<Value>().await.unwrap()
    };
    assert_eq!(put("one").await["state"], "waiting");
    assert_eq!(put("two").await["code"], "NamespaceQueueFull");
}

#[tokio::test]
async fn an_id_of_dots_and_an_excessive_runtime_are_refused() {
    let harness = Harness::new().await;
    for id in [".", "..", "%2e%2e"] {
        // HTTP clients resolve such a path.
        let address = harness.proxy.url.strip_prefix("http://").unwrap();
        let mut connection = RawConnection::open(address).await;
        let body = body("a", "a", 4).to_string();
        let head = format!("PUT /v1/partitions/{id} HTTP/1.1\r\nhost: localhost\r\n");
        let fields = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.send(&format!("{head}{fields}{body}")).await;
        let head = connection.read_head().await;
        let problem: Value = serde_json::from_slice(&connection.read_body(&head).await).unwrap();
        assert_eq!(
            (&problem["status"], &problem["field"]),
            (&json!(422), &json!("id")),
            "{problem}"
        );
        assert!(
            problem["detail"].as_str().unwrap().contains("not '.' or '..'"),
            "{problem}"
        );
    }
    let mut longest = body("a", "a", 4);
    longest["maxRuntimeSeconds"] = json!(u64::MAX / 1000 + 1);
    let (status, problem) = harness.request("a", &longest).await;
    assert_eq!(
        (status, &problem["field"]),
        (422, &json!("maxRuntimeSeconds")),
        "{problem}"
    );
    longest["maxRuntimeSeconds"] = json!(u64::MAX / 1000);
    assert_accepted(harness.request("a", &longest).await);
}
