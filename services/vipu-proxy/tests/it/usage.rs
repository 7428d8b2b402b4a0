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
