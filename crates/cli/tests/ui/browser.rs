//! A headless browser, driven over two pipes: Chrome's DevTools protocol, messages ended by a zero
//! byte. No port is opened for it and no library is needed.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long something on the page may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(30);
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// A folder for pictures of the page, where somebody wants to look at them.
const PICTURES: &str = "CROWFLY_UI_PICTURES";

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: RefCell<ChildStdin>,
    from: RefCell<BufReader<ChildStdout>>,
    next: RefCell<u64>,
    session: RefCell<Option<String>>,
    events: RefCell<Vec<Value>>,
    _profile: tempfile::TempDir,
}

/// Where a browser is; `None` where this machine has none.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut all = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |f| f.join(name)));
    all.find(|file| file.is_file())
}

impl Browser {
    /// A browser that shows nothing yet; `None` where this machine has none.
    pub fn start() -> Option<Self> {
        let program = program()?;
        let profile = tempfile::tempdir().expect("a folder");
        // The protocol is spoken on descriptors 3 and 4.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(program)
            // A browser that is killed leaves nothing behind outside of its profile.
            .env("TMPDIR", profile.path())
            .args([
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-first-run",
                "--no-default-browser-check",
                "--hide-scrollbars",
                "--force-color-profile=srgb",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let browser = Self {
            to: RefCell::new(child.stdin.take().expect("piped")),
            from: RefCell::new(BufReader::new(child.stdout.take().expect("piped"))),
            next: RefCell::new(0),
            session: RefCell::new(None),
            events: RefCell::new(Vec::new()),
            child,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        let session = session["sessionId"].as_str().expect("a session").to_owned();
        browser.session.replace(Some(session));
        for domain in ["Page", "Runtime", "Network", "Log", "DOM"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1200, 900);
        Some(browser)
    }

    /// Asks the browser for something, and returns its answer.
    pub fn call(&self, method: &str, parameters: Value) -> Value {
        let id = self.next.replace_with(|next| *next + 1) + 1;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &*self.session.borrow() {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to
            .borrow_mut()
            .write_all(&bytes)
            .expect("the browser listens");
        loop {
            let answer = self.read();
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.borrow_mut().push(answer);
        }
    }

    fn read(&self) -> Value {
        let mut bytes = Vec::new();
        let read = self.from.borrow_mut().read_until(0, &mut bytes);
        assert!(read.is_ok_and(|read| read > 0), "the browser is gone");
        bytes.pop();
        serde_json::from_slice(&bytes).expect("JSON")
    }

    /// The size of the window.
    pub fn size(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// What the reader's system prefers, such as `prefers-color-scheme` and `dark`.
    pub fn prefers(&self, features: &[(&str, &str)]) {
        let features: Vec<Value> = features
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Opens an address, and waits until the page is ready.
    pub fn open(&self, url: &str) {
        // Another fragment alone would be no new page.
        self.call("Page.navigate", json!({"url": "about:blank"}));
        self.call("Page.navigate", json!({"url": url}));
        self.wait("document.documentElement?.dataset.ready === 'true'");
    }

    /// The value of an expression on the page.
    pub fn value(&self, expression: &str) -> Value {
        let question =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", question);
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        answer["result"]["value"].clone()
    }

    /// The text of what a selector finds first.
    pub fn text(&self, selector: &str) -> String {
        let found = self.value(&format!(
            "document.querySelector({}).textContent",
            quoted(selector)
        ));
        found.as_str().expect("text").to_owned()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn wait(&self, expression: &str) {
        let started = Instant::now();
        let guarded = format!(
            "(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        );
        while self.value(&guarded) != true {
            let waited = started.elapsed() < PATIENCE;
            assert!(
                waited,
                "not so: {expression}\n{}",
                self.value("document.body.innerText")
            );
            std::thread::sleep(POLL);
        }
    }

    /// Clicks with the mouse into the middle of what a selector finds first.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        let spot = self.value(&format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2, r.width] }})()",
            quoted(selector)
        ));
        assert!(spot[2].as_f64() > Some(0.0), "{selector} cannot be seen");
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": spot[0], "y": spot[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses a key, such as `Tab`, `Enter` or `ArrowRight`.
    pub fn press(&self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            " " => 32,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            other => panic!("no code for {other}"),
        };
        let text = match key {
            "Enter" => "\r",
            " " => " ",
            _ => "",
        };
        let down = if text.is_empty() {
            "rawKeyDown"
        } else {
            "keyDown"
        };
        for kind in [down, "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Sets a field as typing would, and tells the page.
    pub fn set(&self, selector: &str, value: &str) {
        self.value(&format!(
            "(() => {{ const e = document.querySelector({}); e.value = {}; \
             e.dispatchEvent(new Event('input', {{bubbles: true}})); \
             e.dispatchEvent(new Event('change', {{bubbles: true}})) }})()",
            quoted(selector),
            quoted(value)
        ));
    }

    /// Puts files into a field.
    pub fn choose(&self, selector: &str, files: &[&str]) {
        let document = self.call("DOM.getDocument", json!({}));
        let root = &document["root"]["nodeId"];
        let node = self.call(
            "DOM.querySelector",
            json!({"nodeId": root, "selector": selector}),
        );
        // The browser follows no `..`.
        let whole = |file: &&str| std::fs::canonicalize(file).expect("it is there");
        let files: Vec<PathBuf> = files.iter().map(whole).collect();
        let chosen = json!({"nodeId": node["nodeId"], "files": files});
        self.call("DOM.setFileInputFiles", chosen);
    }

    /// Everything that went wrong on the page, and every address asked for that is not the page's own.
    pub fn complaints(&self, own: &str) -> Vec<String> {
        self.value("1");
        let events = self.events.borrow();
        let complaint = |event: &Value| {
            let parameters = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(parameters["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" => {
                    let loud =
                        ["error", "warning", "assert"].contains(&parameters["type"].as_str()?);
                    loud.then(|| parameters["args"].to_string())
                }
                "Log.entryAdded" => {
                    let entry = &parameters["entry"];
                    let loud = ["error", "warning"].contains(&entry["level"].as_str()?);
                    loud.then(|| entry.to_string())
                }
                "Network.requestWillBeSent" => {
                    let url = parameters["request"]["url"].as_str()?;
                    let local = url.starts_with(own)
                        || url.starts_with("about:")
                        || url.starts_with("data:");
                    (!local).then(|| format!("asked for {url}"))
                }
                _ => None,
            }
        };
        events.iter().filter_map(complaint).collect()
    }

    /// Forgets what went wrong so far, where that was the point.
    pub fn forget(&self) {
        self.value("1");
        self.events.borrow_mut().clear();
    }

    /// Keeps a picture of the whole page, where somebody wants to look at it.
    pub fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os(PICTURES) else {
            return;
        };
        use base64_of_the_browser as decode;
        let shot = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", shot);
        let picture = decode(answer["data"].as_str().expect("a picture"));
        let file = PathBuf::from(folder).join(format!("{name}.png"));
        std::fs::write(file, picture).expect("written");
    }
}

/// The bytes behind base64, as the protocol writes pictures.
fn base64_of_the_browser(text: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0u32, 0);
    for digit in text
        .bytes()
        .filter_map(|c| DIGITS.iter().position(|d| *d == c))
    {
        bits = bits << 6 | digit as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

/// A text as a script writes it.
pub fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
