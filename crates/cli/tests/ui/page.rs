//! The page in a browser: what a reader clicks, and what then stands there.

use serde_json::Value;

use super::browser::{Browser, quoted};
use super::served::{Served, document};

struct Reader {
    browser: Browser,
    served: Served,
}

impl Reader {
    /// A reader of a page that starts with a DGX H100; `None` where there is no browser.
    fn new() -> Option<Self> {
        let browser = Browser::start()?;
        let served = Served::dgx();
        Some(Self { browser, served })
    }

    fn own(&self) -> String {
        format!("http://127.0.0.1:{}/", self.served.port)
    }

    fn open(&self, fragment: &str) {
        self.browser.open(&format!("{}{fragment}", self.own()));
    }

    /// Nothing went wrong, and nobody else was asked.
    #[track_caller]
    fn content(&self) {
        let complaints = self.browser.complaints(&self.own());
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    fn counters(&self) -> [u64; 4] {
        ["copies", "cpu_touches", "pcie_hops", "host_ram_passes"].map(|name| {
            let text = self.browser.text(&format!("#count-{name}"));
            text.parse().expect("a count")
        })
    }

    fn scene(&self, title: &str) {
        let find = format!(
            "[...document.querySelectorAll('#scenes button')].find((b) => b.textContent === {})",
            quoted(title)
        );
        self.browser.wait(&find);
        self.browser.value(&format!("{find}.id = 'wanted'"));
        self.browser.click("#wanted");
        self.browser.wait(&format!(
            "document.querySelector('#scenes [aria-pressed=true]')?.textContent === {} && !document.querySelector('#wanted')",
            quoted(title)
        ));
    }
}

macro_rules! reader {
    () => {{
        let Some(reader) = Reader::new() else {
            crowfly_waive::waived!("no Chromium on this machine");
        };
        reader
    }};
}

/// The counters of a way by the command.
fn planned(from: &str, to: &str, way: &str) -> [u64; 4] {
    let plan = document(&["route", from, to, "--server", "dgx-h100"]);
    let ways = plan["ways"].as_array().expect("ways");
    let named = ways
        .iter()
        .find(|one| one["name"] == way)
        .expect("it is there");
    ["copies", "cpu_touches", "pcie_hops", "host_ram_passes"]
        .map(|name| named["counters"][name].as_u64().expect("a count"))
}

#[test]
fn a_batch_is_stepped_through_each_scene_and_the_counters_end_at_those_of_the_command() {
    let reader = reader!();
    reader.open("#routes?machine=server:dgx-h100");
    let browser = &reader.browser;
    for (scene, from, way) in [
        ("Sockets", "nic:mlx5_0", "sockets"),
        ("RDMA", "nic:mlx5_0", "rdma"),
        ("GPUDirect RDMA", "nic:mlx5_0", "gpudirect-rdma"),
    ] {
        reader.scene(scene);
        assert_eq!(reader.counters(), [0; 4], "{scene}");
        let hops = browser
            .value("document.querySelectorAll('#hops li').length")
            .as_u64();
        let mut before = [0; 4];
        for _ in 0..hops.expect("a count") {
            browser.click("#step");
            let now = reader.counters();
            assert!(before.iter().zip(now).all(|(b, n)| *b <= n), "{scene}");
            before = now;
        }
        assert_eq!(before, planned(from, "gpu:0", way), "{scene}");
        assert!(browser.text("#now").starts_with("Arrived."), "{scene}");
        let disabled = browser.value("document.querySelector('#step').disabled");
        assert_eq!(disabled, true);
    }
    reader.scene("Wrong-side NIC");
    let from = browser.value("document.querySelector('#place-from').value");
    let from = from.as_str().expect("a place").to_owned();
    while browser.value("document.querySelector('#step').disabled") != true {
        browser.click("#step");
    }
    let wrong = reader.counters();
    assert_eq!(wrong, planned(&from, "gpu:0", "gpudirect-rdma"));
    assert!(wrong[2] > 2, "the wrong side is farther: {wrong:?}");
    browser.picture("routes-wrong-side");
    reader.content();
}

#[test]
fn playing_goes_hop_by_hop_to_the_end_and_can_be_stopped() {
    let reader = reader!();
    reader.open("#routes?machine=server:dgx-h100&from=gpu:0&to=remote:gpu:0&way=sockets");
    let browser = &reader.browser;
    browser.wait("document.querySelectorAll('#hops li').length > 4");
    browser.click("#play");
    assert_eq!(browser.text("#play"), "Pause");
    browser.wait("document.querySelector('#count-copies').textContent !== '0'");
    browser.click("#play");
    assert_eq!(browser.text("#play"), "Play");
    let stopped = reader.counters();
    std::thread::sleep(std::time::Duration::from_millis(1700));
    assert_eq!(reader.counters(), stopped, "it stands still");
    browser.picture("routes-two-servers");
    browser.click("#play");
    browser.wait("document.querySelector('#now').textContent.startsWith('Arrived.')");
    assert_eq!(
        reader.counters(),
        planned("gpu:0", "remote:gpu:0", "sockets")
    );
    browser.click("#back");
    assert!(browser.text("#now").starts_with("Hop "));
    browser.click("#reset");
    assert_eq!(reader.counters(), [0; 4]);
    reader.content();
}

#[test]
fn given_a_reader_who_wants_no_motion_the_batch_jumps() {
    let reader = reader!();
    let browser = &reader.browser;
    browser.prefers(&[("prefers-reduced-motion", "reduce")]);
    reader.open("#routes?machine=server:dgx-h100&from=gpu:0&to=remote:gpu:0&way=gpudirect-rdma");
    browser.wait("document.querySelector('#stage circle')");
    browser.value("window.seen = new Set(); window.watch = setInterval(() => seen.add(document.querySelector('#stage circle').getAttribute('cx')), 20); 1");
    browser.click("#play");
    browser.wait("document.querySelector('#now').textContent.startsWith('Arrived.')");
    let places = browser.value("clearInterval(watch) ?? seen.size");
    assert!(places.as_u64() <= Some(4), "{places} places of three hops");
    reader.content();
}

#[test]
fn given_a_dropped_machine_its_obstacles_stand_there_with_their_fixes() {
    let reader = reader!();
    let browser = &reader.browser;
    reader.open("#routes?machine=server:dgx-h100");
    browser.wait("document.querySelectorAll('#hops li').length > 1");
    let seed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fuzz/seeds/nccl_xml/nccl.xml"
    );
    browser.choose("#machine-file", &[seed]);
    browser.wait("document.querySelector('#machine-said').textContent.startsWith('2 GPUs')");
    browser.wait("document.querySelector('#machine').value.startsWith('file:')");
    reader.scene("GPUDirect RDMA");
    let told = browser.text("#obstacles");
    assert!(
        told.contains("no-peer-memory-client") && told.contains("sudo modprobe nvidia-peermem"),
        "{told}"
    );
    for _ in 0..2 {
        browser.click("#step");
    }
    let tiles = browser
        .value("document.querySelector('#map').shadowRoot.querySelectorAll('g.is-here').length");
    assert_eq!(
        tiles, 1,
        "the device that has the batch is marked in the drawing"
    );
    let offered =
        "[...document.querySelectorAll('[name=server] option')].map((o) => o.textContent)";
    assert!(browser.value(offered).to_string().contains("nccl.xml"));
    browser.choose(
        "#machine-file",
        &[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
    );
    browser.wait("document.querySelector('#machine-said').textContent.startsWith('Cargo.toml: ')");
    let complaints = browser.complaints(&reader.own());
    assert!(
        complaints.iter().all(|c| c.contains("422")),
        "{complaints:?}"
    );
}

#[test]
fn between_places_that_are_typed_the_ways_are_shown_or_the_refusal() {
    let reader = reader!();
    let browser = &reader.browser;
    reader.open("#routes?machine=server:dgx-h100");
    browser.wait("document.querySelectorAll('#hops li').length > 1");
    browser.click("#other-places summary");
    browser.set("#place-from", "gpu:0");
    browser.set("#place-to", "gpu:7");
    browser.click("#places-form button");
    browser.wait("document.querySelector('#ways').textContent.includes('nvlink')");
    assert!(
        browser
            .text("#route-command")
            .starts_with("crowfly route gpu:0 gpu:7")
    );
    reader.content();
    browser.set("#place-to", "gpu:99");
    browser.click("#places-form button");
    browser.wait(
        "document.querySelector('#route-error').textContent.includes('gpu:99 does not exist')",
    );
    browser.set("#place-to", "nowhere");
    browser.click("#places-form button");
    browser.wait("document.querySelector('#route-error').textContent.includes('is not a place')");
}

#[test]
fn a_plan_follows_the_form_and_its_values_are_those_of_the_shown_command() {
    let reader = reader!();
    let browser = &reader.browser;
    reader.open("#plan");
    browser.wait("document.querySelector('#verdict').textContent");
    for (field, value, says) in [
        ("servers", "64", "64 dgx-h100 servers"),
        ("model", "llama3-405b", "step of llama3-405b"),
        ("server", "gcp-a3-ultra", "gcp-a3-ultra"),
        ("params", "13B", "step of 13B"),
        ("sharding", "zero3", "step of 13B"),
    ] {
        browser.set(&format!("#plan-form [name={field}]"), value);
        browser.wait(&format!(
            "document.querySelector('#verdict').textContent.includes({})",
            quoted(says)
        ));
        browser.wait(&format!(
            "location.hash.includes({})",
            quoted(&format!("{field}={value}"))
        ));
    }
    browser
        .wait("document.querySelector('#plan-command').textContent.includes('--sharding=zero3')");
    let shown = browser.text("#plan-command");
    let words: Vec<&str> = shown.split_whitespace().skip(1).collect();
    let plan = document(&words);
    let direct = plan["calibrated"]["direct"]["value"]
        .as_f64()
        .expect("a time");
    let bars = browser.text("#plan-bars");
    let expected = format!("{direct:.2}");
    let expected = if direct < 1.0 {
        format!("{:.0} ms", direct * 1e3)
    } else {
        format!("{expected} s")
    };
    assert!(bars.contains(&expected), "{expected} in {bars}");
    let lines = browser
        .value("document.querySelector('#curve').shadowRoot.querySelectorAll('polyline').length");
    assert_eq!(lines, 5, "article and calibrated, direct and staged");
    for question in ["sweep", "interval", "loading", "fabric"] {
        browser.click(&format!("details[data-question={question}] summary"));
        browser.wait(&format!(
            "document.querySelector('details[data-question={question}] td')"
        ));
    }
    browser.wait("document.querySelector('#checkpoint .bar')");
    browser.picture("plan-questions");
    reader.content();
}

#[test]
fn the_slider_doubles_and_an_impossible_question_is_refused_beside_the_form() {
    let reader = reader!();
    let browser = &reader.browser;
    reader.open("#plan");
    browser.wait("document.querySelector('#verdict').textContent");
    browser.set("#servers-slider", "11");
    browser
        .wait("document.querySelector('#verdict').textContent.includes('2,048 dgx-h100 servers')");
    reader.content();
    browser.set("#plan-form [name=nic-gbps]", "800");
    browser
        .wait("document.querySelector('#plan-error').textContent.includes('faster than its slot')");
    assert!(browser.text("#plan-error").contains("--pcie-gen"));
    assert_eq!(
        browser.value("document.querySelector('#plan-answer').hidden"),
        true
    );
    browser.set("#plan-form [name=pcie-gen]", "6");
    browser.wait("document.querySelector('#plan-error').textContent === ''");
    browser.set("#plan-form [name=servers]", "0");
    browser.wait("document.querySelector('#plan-error').textContent.includes('servers = 0')");
}

#[test]
fn a_link_leads_another_reader_to_the_same_answer() {
    let reader = reader!();
    let browser = &reader.browser;
    reader.open("#plan");
    browser.wait("document.querySelector('#verdict').textContent");
    browser.set("#plan-form [name=server]", "aws-p5en");
    browser.set("#plan-form [name=servers]", "32");
    browser.set("#plan-form [name=tensor]", "8");
    browser.value("document.querySelector('[name=recompute]').click()");
    browser.wait("location.hash.includes('recompute') && location.hash.includes('tensor=8')");
    browser.wait("document.querySelector('#plan-command').textContent.includes('--recompute')");
    let told = (browser.text("#verdict"), browser.text("#plan-command"));
    let link = browser
        .value("location.hash")
        .as_str()
        .expect("a link")
        .to_owned();
    reader.open(&link);
    browser.wait("document.querySelector('#plan-command').textContent.includes('--recompute')");
    assert_eq!(
        (browser.text("#verdict"), browser.text("#plan-command")),
        told
    );
    assert_eq!(browser.value("location.hash"), Value::String(link));

    let link =
        "#routes?machine=server%3Adgx-h100&from=drive%3Anvme0&to=gpu%3A0&way=o-direct&step=2";
    reader.open(link);
    browser.wait("document.querySelector('#now').textContent.startsWith('Arrived.')");
    assert_eq!(
        reader.counters(),
        planned("drive:nvme0", "gpu:0", "o-direct")
    );
    assert_eq!(browser.value("location.hash"), Value::String(link.into()));
    reader.content();
}

#[test]
fn given_a_link_to_what_there_is_not_the_page_says_so_and_does_not_answer_another_question() {
    let reader = reader!();
    let browser = &reader.browser;
    for (link, part) in [
        ("#plan?model=nope", "the catalogue has no model `nope`"),
        ("#plan?server=nope", "the catalogue has no server `nope`"),
        ("#plan?sharding=zzz", "zzz"),
        (
            "#plan?servers=abc",
            "This link gives servers as abc, which is no number.",
        ),
        ("#plan?colour=red", "This link asks for colour"),
    ] {
        reader.open(link);
        browser.wait(&format!(
            "document.querySelector('#plan-error').textContent.includes({})",
            quoted(part)
        ));
        assert_eq!(
            browser.value("document.querySelector('#plan-answer').hidden"),
            true
        );
        let hash = browser.value("location.hash");
        let hash = hash.as_str().expect("a fragment");
        let asked = link.trim_start_matches("#plan?");
        assert!(hash.contains(asked), "the address stays: {hash}");
    }
    reader.open("#plan?nic-gbps=333");
    browser.wait("document.querySelector('#plan-command').textContent.includes('--nic-gbps=333')");
    for step in ["NaN", "1.5", "-1"] {
        reader.open(&format!(
            "#routes?from=gpu:0&to=remote:gpu:0&way=sockets&step={step}"
        ));
        browser.wait("document.querySelector('#now').textContent.includes('At the start')");
    }
}

#[test]
fn pasted_evidence_is_explained_with_its_drawing() {
    let reader = reader!();
    let browser = &reader.browser;
    reader.open("#doctor");
    browser.click("#doctor-form button[type=submit]");
    browser.wait("document.querySelector('#doctor-error').textContent");
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/explain/");
    let log = std::fs::read_to_string(format!("{seeds}nccl-log")).expect("a seed");
    browser.set("#pasted", &log);
    browser.choose("#evidence", &[&format!("{seeds}topo-matrix")]);
    browser.click("#doctor-form button[type=submit]");
    browser.wait("document.querySelector('#findings article')");
    assert_eq!(browser.text("#doctor-error"), "");
    let folder = tempfile::tempdir().expect("a folder");
    let pasted = folder.path().join("pasted.txt");
    std::fs::write(&pasted, &log).expect("written");
    let topo = format!("{seeds}topo-matrix");
    let printed = document(&["explain", &topo, pasted.to_str().expect("text")]);
    let count = printed["findings"].as_array().expect("findings").len();
    let shown = browser.value("document.querySelectorAll('#findings article').length");
    assert_eq!(shown.as_u64(), Some(count as u64));
    let headline = printed["headline"].as_str().expect("a headline");
    assert_eq!(browser.text("#findings h1"), headline);
    assert!(
        browser
            .value("document.querySelectorAll('#findings svg').length")
            .as_u64()
            > Some(0)
    );
    assert_eq!(
        browser.text("#doctor-command"),
        "crowfly explain topo-matrix pasted.txt"
    );
    browser.click("#findings a[href^='#']");
    assert_eq!(browser.value("document.activeElement.tagName"), "ARTICLE");
    assert_eq!(
        browser.value("location.hash"),
        "#doctor",
        "links in the report keep the page's address"
    );
    reader.content();
}

#[test]
fn the_parts_are_links_and_going_back_leads_back() {
    let reader = reader!();
    let browser = &reader.browser;
    reader.open("");
    browser.wait("document.querySelectorAll('#hops li').length > 1");
    for part in ["plan", "doctor", "routes"] {
        browser.click(&format!("nav a[href='#{part}']"));
        browser.wait(&format!("!document.querySelector('#{part}').hidden"));
        let shown = browser.value("[...document.querySelectorAll('main > section')].filter((s) => !s.hidden).map((s) => s.id).join()");
        assert_eq!(shown, part);
        let current = browser.value("document.querySelector('nav a[aria-current=page]').hash");
        assert_eq!(current, format!("#{part}"));
    }
    browser.value("history.back()");
    browser.wait("!document.querySelector('#doctor').hidden");
    reader.content();
}

#[test]
fn given_a_page_without_its_server_it_says_so() {
    let Reader { browser, served } = reader!();
    let own = format!("http://127.0.0.1:{}/", served.port);
    browser.open(&format!("{own}#plan"));
    browser.wait("document.querySelector('#verdict').textContent");
    drop(served);
    browser.set("#plan-form [name=servers]", "16");
    browser
        .wait("document.querySelector('#plan-error').textContent.includes('is it still running?')");
    browser.forget();
}
