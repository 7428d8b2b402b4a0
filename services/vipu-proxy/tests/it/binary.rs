//! The `vipu-proxy` command.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support::request_body;

/// Running proxy, which is killed on drop.
pub(crate) struct RunningProxy {
    child: Child,
    pub(crate) url: String,
}

impl RunningProxy {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Kills the proxy, and waits until it has ended.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipu-proxy"));
    command.args(arguments);
    command
}

pub(crate) async fn start(arguments: &[&str]) -> RunningProxy {
    spawn(command(arguments)).await.unwrap()
}

/// Starts a proxy of these controllers and this ledger on any port, with further arguments.
pub(crate) async fn start_with_controllers(controllers: &str, store: &str, more: &[&str]) -> RunningProxy {
    let fixed = [
        "--controllers",
        controllers,
        "--store",
        store,
        "--listen",
        "127.0.0.1:0",
    ];
    start(&[&fixed, more].concat()).await
}

/// Starts the proxy of `command`; none if it ends before it serves.
pub(crate) async fn spawn(mut command: Command) -> Option<RunningProxy> {
    let mut child = command.kill_on_drop(true).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).await.unwrap();
    let address = line
        .trim()
        .rsplit(' ')
        .next()
        .filter(|address| !address.is_empty())?;
    Some(RunningProxy {
        child,
        url: format!("http://{address}"),
    })
}

pub(crate) fn http() -> reqwest::Client {
    // Fails if another test has already installed the same provider.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::new()
}

#[tokio::test]
async fn a_second_proxy_of_a_ledger_stands_by_until_the_first_ends() {
    let scratch = tempfile::tempdir().unwrap();
    let store = format!("file:{}", scratch.path().join("ledger.db").display());
    let mut first = start_with_controllers("127.0.0.1:1", &store, &[]).await;
    let list = async |proxy: &RunningProxy| http().get(format!("{}/v1/partitions", proxy.url)).send().await;
    while list(&first).await.unwrap().status() != 200 {}
    let second = start_with_controllers("127.0.0.1:1", &store, &[]).await;
    let refused = list(&second).await.unwrap();
    let header = |name: &str| refused.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        (header("connection"), header("retry-after")),
        ("close".into(), "1".into())
    );
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(
        (&problem["status"], &problem["code"]),
        (&json!(503), &json!("Standby"))
    );
    let ready = http().get(format!("{}/readyz", second.url)).send().await.unwrap();
    assert_eq!(ready.json::<Value>().await.unwrap(), json!({"status": "standby"}));
    first.kill().await;
    while list(&second).await.unwrap().status() != 200 {}
}

#[tokio::test]
async fn the_first_command_of_the_guide_returns_the_documented_output() {
    let scratch = tempfile::tempdir().unwrap();
    let store = format!("file:{}", scratch.path().join("ledger.db").display());
    let arguments = [
        "--sim",
        "pod64",
        "--sim-machines",
        "8",
        "--store",
        &store,
        "--listen",
        "127.0.0.1:0",
        "--sim-listen",
        "127.0.0.1:0",
    ];
    let mut running = start(&arguments).await;
    let http = http();
    let put = http.put(format!("{}/v1/partitions/training?wait=30s", running.url));
    let created: Value = put
        .json(&request_body("mnist", 4))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(created["state"], "active", "{created}");
    assert_eq!(created["env"]["IPUOF_VIPU_API_HOST"], "127.0.0.1");
    assert_eq!(created["env"]["IPUOF_VIPU_API_PARTITION_ID"], "training");
    let stats = http.get(format!("{}/stats", running.url));
    let stats: Value = stats.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        stats,
        json!({"default": {"used": 4, "available": 28}, "total": {"used": 4, "available": 28}})
    );
    let pid = running.child.id().unwrap().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .await
            .unwrap()
            .success()
    );
    assert!(running.child.wait().await.unwrap().success());
}

#[tokio::test]
async fn inconsistent_settings_are_refused_by_name() {
    let scratch = tempfile::tempdir().unwrap();
    let accounts = scratch.path().join("accounts.yaml");
    // The account has no namespaces.
    std::fs::write(&accounts, "quotas: [{account: course-7, max-ipus: 8}]\n").unwrap();
    for (arguments, named) in [
        (&["--sim", "pod65"][..], "sim"),
        (
            &["--sim", "pod16", "--sim-machines", "9", "--store", "memory"][..],
            "sim-machines",
        ),
        (&["--sim", "pod64", "--store", "somewhere"][..], "store"),
        (&["--controllers", "pod1:8090"][..], "store"),
        (&["--store", "memory"][..], "controllers"),
        (&["--sim", "pod64", "--listen", "0.0.0.0:8080"][..], "listen"),
        (&["--sim", "pod64", "--tls-cert", "cert.pem"][..], "tls-cert"),
        (
            &[
                "--sim",
                "pod64",
                "--token-file",
                "tokens",
                "--listen",
                "0.0.0.0:0",
            ][..],
            "token-file",
        ),
        (&["--config", "nowhere.yaml"][..], "config"),
        (
            &["--sim", "pod64", "--config", accounts.to_str().unwrap()][..],
            "quotas",
        ),
    ] {
        let output = command(arguments).output().await.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("{named} = ")), "{stderr}");
    }
}

#[tokio::test]
async fn errors_of_a_settings_file_have_their_line_and_no_terms_of_a_library() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("proxy.yaml");
    for (text, message) in [
        (
            "store: memory\nstore: memory\n",
            "the key store occurs twice; remove one of them",
        ),
        ("preemption: 'maybe'\n", "must be true or false"),
        (
            "read-timeout: -1\n",
            "must be a whole number that is not negative",
        ),
        ("sim: [pod16]\n", "must be one text"),
        ("placments: {}\n", "unknown field `placments`"),
        (
            "---\nsim: pod16\n---\nsim: pod64\n",
            "only single YAML document expected",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let refused = command(&["--config", file.to_str().unwrap()]).output().await;
        let stderr = refused.unwrap().stderr;
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(stderr.contains(message) && stderr.contains("line"), "{stderr}");
        for term in ["Policy", "Options", "from_str", "from_multiple", "u64", "scalar"] {
            assert!(!stderr.contains(term), "{stderr}");
        }
    }
}

#[tokio::test]
async fn a_controller_that_is_listed_under_two_names_counts_once() {
    let simulator = vipu_sim::Simulator::builder(ipu_core::hardware::Topology::pod16());
    let simulator = simulator.start().await.unwrap();
    let port = simulator.addr().port();
    let list = format!("127.0.0.1:{port},localhost:{port}");
    let running = start_with_controllers(&list, "memory", &["-v=1"]).await;
    let get = async |path: &str| {
        let response = http().get(format!("{}{path}", running.url)).send().await.unwrap();
        response.json::<Value>().await.unwrap()
    };
    while get("/readyz").await["status"] != "ok" {
        tokio::task::yield_now().await;
    }
    assert_eq!(get("/stats").await["total"], json!({"used": 0, "available": 16}));
    let shown = get("/v1/controllers").await;
    let (first, second) = (&shown["controllers"][0], &shown["controllers"][1]);
    assert_eq!(
        (&first["available"], &first["free"]),
        (&json!(true), &json!(16)),
        "{shown}"
    );
    assert_eq!(
        (&second["available"], &second["free"]),
        (&json!(false), &json!(null)),
        "{shown}"
    );
    let expected = format!(
        "controller localhost:{port} is 127.0.0.1:{port} under a second name: remove one of them from the list of controllers"
    );
    assert_eq!(second["error"], expected);
    let metrics = http()
        .get(format!("{}/metrics", running.url))
        .send()
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    let series = format!(
        "vipu_proxy_same_controller{{controller=\"localhost:{port}\",other=\"127.0.0.1:{port}\"}} 1\n"
    );
    assert!(metrics.contains(&series), "{metrics}");
    let put = http().put(format!("{}/v1/partitions/all?wait=30s", running.url));
    let created: Value = put
        .json(&request_body("all", 16))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        created["controller"]["name"],
        format!("127.0.0.1:{port}"),
        "{created}"
    );
}

#[tokio::test]
async fn a_changed_setting_that_needs_a_restart_is_named_in_the_log() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("proxy.yaml");
    let settings = "sim: pod16\nsim-listen: 127.0.0.1:0\nlisten: 127.0.0.1:0\n";
    std::fs::write(
        &config,
        format!("{settings}placement: first-fit\npreemption: true\n"),
    )
    .unwrap();
    let mut child = command(&["--config", config.to_str().unwrap()])
        .kill_on_drop(true)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = BufReader::new(child.stdout.take().unwrap()).lines();
    ready.next_line().await.unwrap().unwrap();
    let changed = format!("{settings}placement: best-fit\npriorities: [{{max-priority: 0}}]\n");
    std::fs::write(&config, changed).unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let warning = loop {
        let line = log.next_line().await.unwrap().unwrap();
        if line.contains("need a restart") {
            break line;
        }
    };
    assert!(warning.contains("placement, preemption"), "{warning}");
    assert!(!warning.contains("priorities\""), "{warning}");
}
