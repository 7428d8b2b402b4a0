//! `/stats` and `/query`: the examples of the V-IPU guide (V-IPU guide §6.9). Pages of usage records.

use http::StatusCode;
use serde_json::json;

use crate::support::Harness;

#[tokio::test]
async fn queries_of_the_guide_return_the_documented_results() {
    let harness = Harness::new().await;
    let (status, document) = harness.put("training", "mnist", 4).await;
    assert_eq!(status, StatusCode::OK, "{document}");
    let four_used = json!({"used": 4, "available": 28});
    assert_eq!(
        harness.get("/stats").await,
        json!({"default": four_used, "total": four_used})
    );
    let query = async |size: u32| {
        harness
            .call("POST", "/query", &json!({"size": size}).to_string())
            .await
    };
    let response = |number: u32, message: &str| {
        let document = json!({"available": true, "numOfPartitions": number, "message": message});
        (StatusCode::OK, document)
    };
    assert_eq!(query(2).await, response(14, ""));
    assert_eq!(query(64).await, response(0, ""));
    let rule = "is not a power of two from 1 to 65536; the next one up is";
    assert_eq!(query(0).await, response(0, &format!("0 {rule} 1")));
    assert_eq!(query(3).await, response(0, &format!("3 {rule} 4")));
    assert_eq!(harness.get("/health").await, json!({"status": "ok"}));
}

#[tokio::test]
async fn a_query_without_a_responding_controller_is_unavailable_and_names_the_controller() {
    let harness = Harness::new().await;
    harness.start_outage().await;
    let (status, document) = harness.call("POST", "/query", r#"{"size": 2}"#).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(document["available"], false);
    assert_eq!(document["numOfPartitions"], 0);
    assert!(
        document["message"]
            .as_str()
            .unwrap()
            .contains(&harness.controller),
        "{document}"
    );
}

/// Creates and releases `number` partitions.
async fn create_and_release(harness: &Harness, number: usize) {
    for index in 0..number {
        let id = format!("hold-{index}");
        assert_eq!(harness.put(&id, &id, 4).await.0, StatusCode::OK);
        let path = format!("/v1/partitions/{id}?wait=5s");
        assert_eq!(harness.call("DELETE", &path, "").await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn usage_pages_join_to_the_complete_list() {
    let harness = Harness::new().await;
    create_and_release(&harness, 5).await;
    let all = harness.get("/v1/usage").await;
    assert_eq!(
        (all["records"].as_array().unwrap().len(), &all["continue"]),
        (5, &json!(null))
    );
    let (mut joined, mut path) = (Vec::new(), "/v1/usage?limit=2".to_owned());
    let mut pages = 0;
    loop {
        let page = harness.get(&path).await;
        pages += 1;
        let records = page["records"].as_array().unwrap();
        assert!(records.len() <= 2, "{page}");
        joined.extend(records.clone());
        let Some(token) = page["continue"].as_str() else {
            break;
        };
        path = format!("/v1/usage?limit=2&continue={token}");
    }
    assert_eq!((pages, json!(joined)), (3, all["records"].clone()));
}

#[tokio::test]
async fn an_invalid_limit_or_position_is_refused_with_a_fix() {
    let harness = Harness::new().await;
    for (query, field, value, rule) in [
        ("limit=0", "limit", "0", "must be a whole number from 1 to 2000"),
        (
            "limit=2001",
            "limit",
            "2001",
            "must be a whole number from 1 to 2000",
        ),
        ("limit=", "limit", "", "must be a whole number from 1 to 2000"),
        (
            "continue=abc",
            "continue",
            "abc",
            "must be RELEASED.TICKET.HELD.ID",
        ),
        (
            "continue=1.2.3.",
            "continue",
            "1.2.3.",
            "must be RELEASED.TICKET.HELD.ID",
        ),
    ] {
        let (status, problem) = harness.call("GET", &format!("/v1/usage?{query}"), "").await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}: {problem}");
        assert_eq!(
            (&problem["field"], &problem["value"]),
            (&json!(field), &json!(value))
        );
        assert!(problem["rule"].as_str().unwrap().starts_with(rule), "{problem}");
        assert!(problem["fix"].is_string(), "{problem}");
    }
}
