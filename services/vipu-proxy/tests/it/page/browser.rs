//! A headless Chromium, and the checks of a page in it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};

use crate::binary::http;
use crate::support::found_or_skipped;

/// Interval between two looks at the page, within the page.
const LOOK_MILLIS: u32 = 10;

/// Browsers one after the other: two of them would stall each other.
static BROWSER: Mutex<()> = Mutex::const_new(());

/// Running browser. It ends with its driver.
pub(super) struct Browser {
    client: Client,
    driver_url: String,
    _driver: Child,
    _profile: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    /// Starts a browser; none if it is not installed, except in CI.
    pub(super) async fn start(test: &str) -> Option<Self> {
        let turn = BROWSER.lock().await;
        let missing = "chromedriver, and chromium, of the packages chromium-driver and chromium";
        let (driver, port) = loop {
            let mut driver = found_or_skipped(test, driver().ok(), missing)?;
            if let Some(port) = port(&mut driver).await {
                break (driver, port);
            }
        };
        let profile = tempfile::tempdir().unwrap();
        let options = json!({"goog:chromeOptions": {"args": [
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--lang=en-GB",
            // The browser ends with the pipe of its driver, even if the test fails.
            "--remote-debugging-pipe", "--window-size=1280,1400",
            format!("--user-data-dir={}", profile.path().display()),
        ]}});
        let mut builder = ClientBuilder::new(HttpConnector::new());
        let builder = builder.capabilities(options.as_object().unwrap().clone());
        let driver_url = format!("http://127.0.0.1:{port}");
        let client = builder.connect(&driver_url).await.unwrap();
        Some(Self {
            client,
            driver_url,
            _driver: driver,
            _profile: profile,
            _turn: turn,
        })
    }

    /// Opens the page of a proxy, and waits for a condition.
    pub(super) async fn open(&self, proxy: &str, condition: &str) {
        self.client.goto(&format!("{proxy}/ui")).await.unwrap();
        self.until(condition).await;
    }

    /// Runs a script, and returns its result.
    pub(super) async fn run(&self, script: &str) -> Value {
        let result = self.client.execute(script, Vec::new()).await;
        result.unwrap_or_else(|error| panic!("{error}: {script:.200}"))
    }

    /// Waits until an expression is true, in the page itself.
    pub(super) async fn until(&self, condition: &str) {
        let script = format!(
            "const done = arguments[0]; \
             const look = () => ({condition}) ? done(true) : setTimeout(look, {LOOK_MILLIS}); look();"
        );
        if let Err(error) = self.client.execute_async(&script, Vec::new()).await {
            let text = self.text("body").await;
            panic!("{error}: {condition}\n{text}");
        }
    }

    pub(super) async fn text(&self, place: &str) -> String {
        let script = format!("return document.querySelector({}).textContent", json!(place));
        self.run(&script).await.as_str().unwrap().to_owned()
    }

    pub(super) async fn click(&self, place: &str) {
        self.client
            .find(Locator::Css(place))
            .await
            .unwrap()
            .click()
            .await
            .unwrap();
    }

    /// Presses a key of the focused element.
    pub(super) async fn press(&self, key: &str) {
        self.client
            .active_element()
            .await
            .unwrap()
            .send_keys(key)
            .await
            .unwrap();
    }

    pub(super) async fn fill(&self, place: &str, text: &str) {
        let field = self.client.find(Locator::Css(place)).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    /// Enters a text into the search of the page.
    pub(super) async fn find_on_page(&self, text: &str) {
        self.fill("#find", &format!("{text}\u{E007}")).await;
    }

    /// Sends a command of the DevTools protocol, which the driver passes on.
    async fn devtools(&self, command: &str, parameters: Value) {
        let session = self.client.session_id().await.unwrap().unwrap();
        let post = http().post(format!("{}/session/{session}/goog/cdp/execute", self.driver_url));
        let answer = post
            .json(&json!({"cmd": command, "params": parameters}))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200, "{command}");
    }

    /// Shows the page in a colour scheme and a width.
    pub(super) async fn emulate(&self, scheme: &str, width: u32) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features}))
            .await;
        let size = json!({"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Returns the violations that axe-core finds, which must be loaded.
    pub(super) async fn check_accessibility(&self) -> Value {
        let script = "const done = arguments[0]; axe.run(document).then((found) => done(found.violations.map((one) => \
                      [one.id, one.help, one.nodes.map((node) => node.html)])));";
        self.client.execute_async(script, Vec::new()).await.unwrap()
    }

    /// Writes a picture of the window for the book, if `UPDATE` is set.
    pub(super) async fn screenshot(&self, name: &str) {
        if std::env::var_os("UPDATE").is_some() {
            self.run("scrollTo(0, 0)").await;
            let picture = self.client.screenshot().await.unwrap();
            assert!(picture.len() < 200_000, "{name}: {} bytes", picture.len());
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../docs/images")
                .join(name);
            std::fs::write(path, picture).unwrap();
        }
    }

    pub(super) async fn close(self) {
        self.client.close().await.unwrap();
    }
}

/// Returns the script of axe-core; none if it is not installed, except in CI.
pub(super) fn axe(test: &str) -> Option<String> {
    // Next to the directory of this program's profile.
    let program = PathBuf::from(env!("CARGO_BIN_EXE_vipu-proxy"));
    let mut directories = program.ancestors();
    let target = directories.nth(2);
    let script = target.map(|target| target.join("tools/axe/node_modules/axe-core/axe.min.js"));
    let script = script.and_then(|script| std::fs::read_to_string(script).ok());
    found_or_skipped(test, script, "axe-core, which `.ci/run tools` installs with npm")
}

/// Starts a driver at a port that is free for IPv6.
fn driver() -> io::Result<Child> {
    let mut driver = Command::new("chromedriver");
    driver
        .args(["--port=0", "--log-level=SEVERE"])
        .stdout(Stdio::piped());
    driver.kill_on_drop(true).spawn()
}

/// Port of a driver; none if it ends because another program has that port for IPv4.
async fn port(driver: &mut Child) -> Option<String> {
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let mut printed = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        if let Some((_, port)) = line.split_once("successfully on port ") {
            return Some(port.trim_end_matches('.').to_owned());
        }
        printed += &line;
    }
    assert!(printed.contains("port not available"), "{printed}");
    None
}
