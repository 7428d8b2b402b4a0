//! The event stream.

use serde_json::{Value, json};

use crate::support::Harness;

/// More changes than the history of a proxy holds.
const MORE_THAN_HISTORY: usize = 4_200;

/// Names of events that are not about a partition.
const SUBJECTS: [&str; 3] = ["queue", "cordons", "controllers"];

/// Open event stream.
pub(crate) struct Events(reqwest::Response, String);

impl Events {
    pub(crate) async fn open(harness: &Harness, last: Option<&str>) -> Self {
        let mut request = harness.http.get(format!("{}/v1/events", harness.proxy.url));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Self(request.send().await.unwrap(), String::new())
    }

    /// Reads until the subject has changed.
    pub(crate) async fn until_subject(&mut self, subject: &str) {
        while self.next_of_all().await.0 != subject {}
    }

    /// Reads until a partition has changed.
    pub(crate) async fn until_change(&mut self) {
        while self.next_of_all().await.0 != "change" {}
    }

    /// Returns the next event about partitions: its kind, its data and its id.
    async fn next(&mut self) -> (String, Value, String) {
        loop {
            let (kind, data, id) = self.next_of_all().await;
            if !SUBJECTS.contains(&kind.as_str()) {
                return (kind, data, id.unwrap());
            }
        }
    }

    async fn next_of_all(&mut self) -> (String, Value, Option<String>) {
        loop {
            if let Some((event, rest)) = self.1.clone().split_once("\n\n") {
                self.1 = rest.to_owned();
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.map(|text| text.trim_start().to_owned())
                };
                if let Some(data) = field("data:") {
                    let data = serde_json::from_str(&data).unwrap();
                    return (field("event:").unwrap(), data, field("id:"));
                }
                continue;
            }
            let chunk = self.0.chunk().await.unwrap().unwrap();
            self.1 += std::str::from_utf8(&chunk).unwrap();
        }
    }

    /// Returns the states of the changes of `id` up to `to`, and the id of the last event.
    async fn until(&mut self, id: &str, to: &str) -> (Vec<String>, String) {
        let mut states = Vec::new();
        loop {
            let (kind, data, last) = self.next().await;
            assert_eq!(kind, "change");
            if data["id"] == id {
                states.push(data["to"].as_str().unwrap().to_owned());
                if data["to"] == to {
                    return (states, last);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_stream_starts_with_a_snapshot_and_resumes_after_a_disconnect() {
    let harness = Harness::new().await;
    harness.put("first", "first", 4).await;
    let mut events = Events::open(&harness, None).await;
    let (kind, data, _) = events.next().await;
    assert_eq!(
        (kind.as_str(), &data["partitions"][0]["id"]),
        ("snapshot", &json!("first"))
    );
    harness.put("second", "second", 4).await;
    let (states, last) = events.until("second", "active").await;
    assert_eq!(states, ["creating", "active"]);
    drop(events);

    harness.call("DELETE", "/v1/partitions/first?wait=5s", "").await;
    let mut resumed = Events::open(&harness, Some(&last)).await;
    let (states, last) = resumed.until("first", "gone").await;
    assert_eq!(states, ["releasing", "gone"]);
    drop(resumed);

    // An event id of another process is unknown here.
    let elsewhere = format!("1{last}");
    let mut restarted = Events::open(&harness, Some(&elsewhere)).await;
    let (kind, data, _) = restarted.next().await;
    assert_eq!(
        (kind.as_str(), &data["partitions"][0]["id"]),
        ("snapshot", &json!("second"))
    );
}

#[tokio::test]
async fn a_stream_restarts_with_a_snapshot_after_an_expired_or_unknown_event() {
    let harness = Harness::new().await;
    let mut body = crate::support::request_body("held", 4);
    body["leaseSeconds"] = json!(60);
    harness
        .call("PUT", "/v1/partitions/held?wait=5s", &body.to_string())
        .await;
    let mut events = Events::open(&harness, None).await;
    let (_, _, first) = events.next().await;
    drop(events);
    let url = format!("{}/v1/partitions/held/heartbeat", harness.proxy.url);
    for seconds in 0..MORE_THAN_HISTORY {
        let beat = harness.http.post(&url).json(&json!({"seconds": 100 + seconds}));
        assert_eq!(beat.send().await.unwrap().status(), 200);
    }
    let (epoch, _) = first.split_once('-').unwrap();
    for event_id in [
        first.clone(),
        format!("{epoch}-999999"),
        "nonsense".to_owned(),
        "1-".to_owned(),
    ] {
        let mut resumed = Events::open(&harness, Some(&event_id)).await;
        let (kind, data, _) = resumed.next().await;
        assert_eq!(
            (kind.as_str(), &data["partitions"][0]["id"]),
            ("snapshot", &json!("held")),
            "{event_id}"
        );
        // Changes follow the snapshot.
        harness
            .call("POST", "/v1/partitions/held/heartbeat", r#"{"seconds": 50}"#)
            .await;
        harness
            .call("POST", "/v1/partitions/held/heartbeat", r#"{"seconds": 51}"#)
            .await;
        assert_eq!(resumed.next().await.0, "change", "{event_id}");
    }
}

#[tokio::test]
async fn a_queued_request_has_a_reason_in_every_event() {
    let harness = Harness::new().await;
    harness.put("all", "all", 32).await;
    let mut events = Events::open(&harness, None).await;
    events.next().await;
    harness.put("waits", "waits", 4).await;
    let (kind, data, _) = events.next().await;
    assert_eq!((kind.as_str(), &data["to"]), ("change", &json!("waiting")));
    assert_eq!(data["partition"]["reason"]["code"], "Queued", "{data}");
}
