//! `/stats` and `/query`: the answers of the original's guide, for the same questions (seed 000 §6.9).

use http::StatusCode;
use serde_json::json;

use crate::support::Bench;

#[tokio::test(start_paused = true)]
async fn the_guide_s_questions_have_the_guide_s_answers() {
    let bench = Bench::new();
    let (status, document) = bench.put("training", "mnist", 4).await;
    assert_eq!(status, StatusCode::OK, "{document}");
    let four_used = json!({"used": 4, "available": 28});
    assert_eq!(
        bench.get("/stats").await,
        json!({"default": four_used, "total": four_used})
    );
    let ask = async |size: u32| {
        bench
            .call("POST", "/query", &json!({"size": size}).to_string())
            .await
    };
    let answer = |number: u32, message: &str| {
        let document = json!({"available": true, "numOfPartitions": number, "message": message});
        (StatusCode::OK, document)
    };
    assert_eq!(ask(2).await, answer(14, ""));
    assert_eq!(ask(64).await, answer(0, ""));
    let rule = "is not a power of two from 1 to 65536; the next one up is";
    assert_eq!(ask(0).await, answer(0, &format!("0 {rule} 1")));
    assert_eq!(ask(3).await, answer(0, &format!("3 {rule} 4")));
    assert_eq!(bench.get("/health").await, json!({"status": "ok"}));
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_of_a_controller_nothing_is_available_and_the_message_says_who_is_silent() {
    let bench = Bench::new();
    bench.controller.go_down();
    let (status, document) = bench.call("POST", "/query", r#"{"size": 2}"#).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(document["available"], false);
    assert_eq!(document["numOfPartitions"], 0);
    assert!(
        document["message"].as_str().unwrap().contains("pod:8090"),
        "{document}"
    );
}

/// Makes and releases `number` partitions.
async fn holds(bench: &Bench, number: usize) {
    for index in 0..number {
        let id = format!("hold-{index}");
        assert_eq!(bench.put(&id, &id, 4).await.0, StatusCode::OK);
        let path = format!("/v1/partitions/{id}?wait=5s");
        assert_eq!(bench.call("DELETE", &path, "").await.0, StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn usage_is_answered_in_pages_that_join() {
    let bench = Bench::new();
    holds(&bench, 5).await;
    let all = bench.get("/v1/usage").await;
    assert_eq!(
        (all["records"].as_array().unwrap().len(), &all["continue"]),
        (5, &json!(null))
    );
    let (mut joined, mut path) = (Vec::new(), "/v1/usage?limit=2".to_owned());
    let mut pages = 0;
    loop {
        let page = bench.get(&path).await;
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

#[tokio::test(start_paused = true)]
async fn a_limit_or_a_position_that_is_none_is_refused_with_the_fix() {
    let bench = Bench::new();
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
        let (status, problem) = bench.call("GET", &format!("/v1/usage?{query}"), "").await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}: {problem}");
        assert_eq!(
            (&problem["field"], &problem["value"]),
            (&json!(field), &json!(value))
        );
        assert!(problem["rule"].as_str().unwrap().starts_with(rule), "{problem}");
        assert!(problem["fix"].is_string(), "{problem}");
    }
}
