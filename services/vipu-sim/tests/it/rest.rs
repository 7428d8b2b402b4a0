//! The REST API and the administrator routes.

use ipu_core::hardware::Topology;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use vipu_sim::Simulator;

use crate::support::http;

struct RestFixture {
    simulator: Simulator,
    http: Client,
}

impl RestFixture {
    async fn start(topology: &str) -> Self {
        let topology: Topology = topology.parse().unwrap();
        let simulator = Simulator::builder(topology).start().await.unwrap();
        Self {
            simulator,
            http: http().build().unwrap(),
        }
    }

    async fn call(&self, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
        let url = format!("http://{}{path}", self.simulator.addr());
        let reply = self
            .http
            .request(method, url)
            .body(body.to_owned())
            .send()
            .await
            .unwrap();
        let status = reply.status();
        (status, reply.json().await.unwrap())
    }

    async fn create(&self, id: &str, size: u32) -> StatusCode {
        let body = json!({"requirements": {"id": id, "size": size}}).to_string();
        self.call(Method::POST, "/v1/partitions", &body).await.0
    }
}

#[tokio::test]
async fn a_partition_is_created_reset_and_removed_over_rest() {
    let rest = RestFixture::start("pod16").await;
    let body =
        json!({"requirements": {"id": "p1", "size": 4, "numGcds": 2}, "relocatable": true}).to_string();
    let (status, reply) = rest.call(Method::POST, "/v1/partitions", &body).await;
    assert_eq!(
        (status, reply),
        (StatusCode::ACCEPTED, json!({"partitionId": "p1"}))
    );
    let (_, reply) = rest.call(Method::GET, "/v1/partitions/p1/status", "").await;
    assert_eq!(reply["status"]["readyState"], "PS_ACTIVE");
    let (_, reply) = rest
        .call(Method::GET, "/v1/partitions?allocationId=cl1", "")
        .await;
    assert_eq!(reply["partitions"][0]["spec"]["numGcds"], 2);
    let (_, reply) = rest
        .call(Method::GET, "/v1/partitions/p1/ipuof-config?gcdId=1", "")
        .await;
    assert_eq!(reply["ipuofConfig"]["gcdConfigs"][0]["attributes"]["GCD Id"], "1");
    assert_eq!(
        rest.call(Method::POST, "/v1/partitions/p1/reset", "").await.0,
        StatusCode::OK
    );
    let (status, reply) = rest
        .call(Method::DELETE, "/v1/partitions/p1?force=true", "")
        .await;
    assert_eq!((status, reply), (StatusCode::ACCEPTED, json!({})));
    let (status, reply) = rest.call(Method::GET, "/v1/partitions/p1/status", "").await;
    assert_eq!((status, &reply["code"]), (StatusCode::NOT_FOUND, &json!(5)));
    let (_, reply) = rest.call(Method::GET, "/v1/version", "").await;
    assert_eq!(reply, json!({"version": "1.18.0-sim"}));
}

#[tokio::test]
async fn every_error_is_a_json_status() {
    let rest = RestFixture::start("pod4").await;
    assert_eq!(rest.create("p1", 4).await, StatusCode::ACCEPTED);
    let large = "x".repeat(64 * 1024 + 1);
    for (method, path, body, status, code) in [
        (Method::POST, "/v1/partitions", "{", StatusCode::BAD_REQUEST, 3),
        (
            Method::POST,
            "/v1/partitions",
            r#"{"colour": 1}"#,
            StatusCode::BAD_REQUEST,
            3,
        ),
        (
            Method::POST,
            "/v1/partitions",
            r#"{"requirements": {"id": "p", "size": 3}}"#,
            StatusCode::BAD_REQUEST,
            3,
        ),
        (
            Method::POST,
            "/v1/partitions",
            r#"{"requirements": {"id": "p1", "size": 1}}"#,
            StatusCode::CONFLICT,
            6,
        ),
        (
            Method::POST,
            "/v1/partitions",
            r#"{"requirements": {"id": "p2", "size": 1}}"#,
            StatusCode::TOO_MANY_REQUESTS,
            8,
        ),
        (
            Method::POST,
            "/v1/partitions",
            &*large,
            StatusCode::PAYLOAD_TOO_LARGE,
            3,
        ),
        (
            Method::GET,
            "/v1/partitions?colour=red",
            "",
            StatusCode::BAD_REQUEST,
            3,
        ),
        (
            Method::GET,
            "/v1/partitions/p1/ipuof-config?gcdId=one",
            "",
            StatusCode::BAD_REQUEST,
            3,
        ),
        (Method::DELETE, "/v1/partitions/p9", "", StatusCode::NOT_FOUND, 5),
        (
            Method::PATCH,
            "/v1/partitions",
            "",
            StatusCode::METHOD_NOT_ALLOWED,
            12,
        ),
        (Method::GET, "/v2/partitions", "", StatusCode::NOT_FOUND, 12),
        (Method::DELETE, "/sim/agents/a9", "", StatusCode::NOT_FOUND, 5),
        (
            Method::PUT,
            "/sim/faults",
            r#"[{"kind": "error", "rate": 2}]"#,
            StatusCode::BAD_REQUEST,
            3,
        ),
    ] {
        let (actual, reply) = rest.call(method.clone(), path, body).await;
        assert_eq!(
            (actual, &reply["code"]),
            (status, &json!(code)),
            "{method} {path}: {reply}"
        );
        assert!(
            reply["message"].is_string() && reply["details"].is_array(),
            "{reply}"
        );
    }
}

#[tokio::test]
async fn grpc_web_is_not_treated_as_grpc() {
    let rest = RestFixture::start("pod4").await;
    let url = format!(
        "http://{}/virmgrpc.UserService/ListPartitions",
        rest.simulator.addr()
    );
    let request = rest
        .http
        .post(url)
        .header("content-type", "application/grpc-web+proto");
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status(), StatusCode::NOT_FOUND);
    assert_eq!(reply.headers()["content-type"], "application/json");
}

#[tokio::test]
async fn an_administrator_changes_the_topology_and_health() {
    let rest = RestFixture::start("pod4").await;
    let agent = json!({"id": "new", "cluster": "cl1", "allocations": ["cl1", "second"]}).to_string();
    assert_eq!(
        rest.call(Method::POST, "/sim/agents", &agent).await.0,
        StatusCode::CREATED
    );
    assert_eq!(
        rest.call(Method::POST, "/sim/agents", &agent).await.0,
        StatusCode::CONFLICT
    );
    let (_, allocations) = rest.call(Method::GET, "/sim/allocations", "").await;
    assert_eq!(allocations[1]["id"], "second");
    assert_eq!(rest.create("p1", 8).await, StatusCode::ACCEPTED);
    assert_eq!(
        rest.call(Method::DELETE, "/sim/agents/new", "").await.0,
        StatusCode::BAD_REQUEST
    );
    let bad = r#"{"health": "bad"}"#;
    assert_eq!(
        rest.call(Method::POST, "/sim/ipus/new/1", bad).await.0,
        StatusCode::OK
    );
    let (_, state) = rest.call(Method::GET, "/sim/state", "").await;
    assert_eq!(
        (&state["partitions"][0]["state"], &state["bad"]),
        (&json!("ERROR"), &json!([[0, 6]]))
    );
    let (_, agents) = rest.call(Method::GET, "/v1/ipu-attributes?agents=new", "").await;
    let attributes = &agents["entries"][0]["ipuAttributes"]["1"]["attributes"];
    assert_eq!(
        (&attributes["health"], &attributes["allocation"]),
        (&json!("bad"), &json!("cl1,second"))
    );
    rest.call(Method::DELETE, "/v1/partitions/p1?force=true", "")
        .await;
    assert_eq!(
        rest.call(Method::DELETE, "/sim/agents/new", "").await.0,
        StatusCode::OK
    );
    assert_eq!(rest.simulator.state().unwrap().ipus, 4);
}

#[tokio::test]
async fn the_map_draws_machines_partitions_and_health() {
    let rest = RestFixture::start("1x2").await;
    rest.create("alpha", 4).await;
    rest.create("beta", 1).await;
    rest.call(Method::POST, "/sim/ipus/a2/0", r#"{"health": "bad"}"#)
        .await;
    let url = format!("http://{}/sim/map", rest.simulator.addr());
    let map = rest.http.get(url).send().await.unwrap().text().await.unwrap();
    let expected = "\
1x2: 8 IPUs, 2 free, 5 in 2 partitions, 1 bad

cluster cl1, link domain 0
  ┌───────────┬───────────┐
  │ a1        │ a2        │
  │ A A A A   │ B · · ·!  │  IPUs 0-7
  └───────────┴───────────┘

  · free   ! bad   - in no allocation
  A alpha  ACTIVE       4 IPUs, 1 GCD, allocation cl1
  B beta   ACTIVE       1 IPUs, 1 GCD, allocation cl1
";
    assert_eq!(map, expected);
}
