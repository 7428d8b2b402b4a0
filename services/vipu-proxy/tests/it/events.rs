//! The event stream.

use http::Request;
use http_body_util::{BodyExt as _, Empty};
use serde_json::{Value, json};
use vipu_proxy::FrontBody;

use crate::support::Bench;

/// An open stream.
struct Events(FrontBody, String);

impl Events {
    async fn open(bench: &Bench, last: Option<&str>) -> Self {
        let mut request = Request::get("/v1/events");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
        Self(bench.front.answer(request).await.into_body(), String::new())
    }

    /// The next event: its kind, its data and its id.
    async fn next(&mut self) -> (String, Value, String) {
        loop {
            if let Some((event, rest)) = self.1.clone().split_once("\n\n") {
                self.1 = rest.to_owned();
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.map(|text| text.trim_start().to_owned())
                };
                if let Some(data) = field("data:") {
                    let data = serde_json::from_str(&data).unwrap();
                    return (field("event:").unwrap(), data, field("id:").unwrap());
                }
                continue;
            }
            let frame = self.0.frame().await.unwrap().unwrap();
            self.1 += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
    }

    /// The changes of `id` up to state `to`.
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

#[tokio::test(start_paused = true)]
async fn a_stream_begins_with_a_snapshot_and_goes_on_where_it_broke_off() {
    let bench = Bench::new();
    bench.put("first", "first", 4).await;
    let mut events = Events::open(&bench, None).await;
    let (kind, data, _) = events.next().await;
    assert_eq!(
        (kind.as_str(), &data["partitions"][0]["id"]),
        ("snapshot", &json!("first"))
    );
    bench.put("second", "second", 4).await;
    let (states, last) = events.until("second", "active").await;
    assert_eq!(states, ["intent", "active"]);
    drop(events);

    bench.call("DELETE", "/v1/partitions/first?wait=5s", "").await;
    let mut again = Events::open(&bench, Some(&last)).await;
    let (states, last) = again.until("first", "gone").await;
    assert_eq!(states, ["releasing", "gone"]);
    drop(again);

    // What another process counted says nothing here.
    let elsewhere = format!("1{last}");
    let mut anew = Events::open(&bench, Some(&elsewhere)).await;
    let (kind, data, _) = anew.next().await;
    assert_eq!(
        (kind.as_str(), &data["partitions"][0]["id"]),
        ("snapshot", &json!("second"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_begins_anew_where_the_changes_are_not_kept_any_more_or_never_were() {
    let bench = Bench::new();
    let mut body = crate::support::wanted("held", 4);
    body["leaseSeconds"] = json!(60);
    bench
        .call("PUT", "/v1/partitions/held?wait=5s", &body.to_string())
        .await;
    let mut events = Events::open(&bench, None).await;
    let (_, _, first) = events.next().await;
    drop(events);
    // More changes than are kept.
    for seconds in 0..5_000 {
        let body = json!({"seconds": 100 + seconds}).to_string();
        let path = "/v1/partitions/held/heartbeat";
        assert_eq!(bench.call("POST", path, &body).await.0, 200);
    }
    let (epoch, _) = first.split_once('-').unwrap();
    for place in [
        first.clone(),
        format!("{epoch}-999999"),
        "nonsense".to_owned(),
        "1-".to_owned(),
    ] {
        let mut again = Events::open(&bench, Some(&place)).await;
        let (kind, data, _) = again.next().await;
        assert_eq!(
            (kind.as_str(), &data["partitions"][0]["id"]),
            ("snapshot", &json!("held")),
            "{place}"
        );
        // And it goes on from there.
        bench
            .call("POST", "/v1/partitions/held/heartbeat", r#"{"seconds": 50}"#)
            .await;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        bench
            .call("POST", "/v1/partitions/held/heartbeat", r#"{"seconds": 51}"#)
            .await;
        assert_eq!(again.next().await.0, "change", "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_has_a_reason_in_every_event() {
    let bench = Bench::new();
    bench.put("all", "all", 32).await;
    let mut events = Events::open(&bench, None).await;
    events.next().await;
    bench.put("waits", "waits", 4).await;
    let (kind, data, _) = events.next().await;
    assert_eq!((kind.as_str(), &data["to"]), ("change", &json!("waiting")));
    assert_eq!(data["partition"]["reason"]["code"], "Queued", "{data}");
    bench.call("DELETE", "/v1/partitions/all?wait=5s", "").await;
    let (_, snapshot, _) = Events::open(&bench, None).await.next().await;
    assert_eq!(
        snapshot["partitions"][0]["reason"]["code"], "NextInLine",
        "{snapshot}"
    );
}
