//! The page can be read and used by everybody: names, order, contrast, keyboard, small screens.

use serde_json::Value;

use super::browser::Browser;
use super::served::Served;

const CHECK: &str = include_str!("readable.js");
/// The parts of the page with what each shows when it is opened.
const PARTS: [(&str, &str); 3] = [
    (
        "#routes?machine=server:dgx-h100",
        "document.querySelectorAll('#hops li').length > 1",
    ),
    (
        "#plan?servers=64",
        "document.querySelector('#verdict').textContent && document.querySelector('#checkpoint .bar')",
    ),
    ("#doctor", "!document.querySelector('#doctor').hidden"),
];

fn wrong(browser: &Browser) -> Vec<String> {
    let found = browser.value(CHECK);
    let found = found.as_array().expect("a list").iter();
    found
        .map(|one| one.as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn every_part_has_names_order_and_contrast_in_light_and_in_dark() {
    let Some(browser) = Browser::start() else {
        crowfly_waive::waived!("no Chromium on this machine");
    };
    let served = Served::dgx();
    for scheme in ["light", "dark"] {
        browser.prefers(&[("prefers-color-scheme", scheme)]);
        for (part, shows) in PARTS {
            browser.open(&format!("http://127.0.0.1:{}/{part}", served.port));
            browser.wait(shows);
            let wrong = wrong(&browser);
            assert!(
                wrong.is_empty(),
                "{scheme} {part}:\n  {}",
                wrong.join("\n  ")
            );
            let name = part
                .trim_start_matches('#')
                .split('?')
                .next()
                .unwrap_or_default();
            browser.picture(&format!("{name}-{scheme}"));
        }
        let paper = browser.value("getComputedStyle(document.body).backgroundColor");
        let expected = if scheme == "dark" {
            "rgb(13, 17, 23)"
        } else {
            "rgb(255, 255, 255)"
        };
        assert_eq!(paper, Value::String(expected.into()));
    }
}

#[test]
fn findings_have_names_order_and_contrast_too() {
    let Some(browser) = Browser::start() else {
        crowfly_waive::waived!("no Chromium on this machine");
    };
    let served = Served::dgx();
    for scheme in ["light", "dark"] {
        browser.prefers(&[("prefers-color-scheme", scheme)]);
        browser.open(&format!("http://127.0.0.1:{}/#doctor", served.port));
        let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/explain/");
        browser.choose(
            "#evidence",
            &[&format!("{log}nccl-log"), &format!("{log}topo-matrix")],
        );
        browser.click("#doctor-form button[type=submit]");
        browser.wait("document.querySelector('#findings article')");
        let wrong = wrong(&browser);
        assert!(wrong.is_empty(), "{scheme}:\n  {}", wrong.join("\n  "));
        browser.picture(&format!("findings-{scheme}"));
    }
}

#[test]
fn at_the_width_of_a_phone_nothing_scrolls_sideways() {
    let Some(browser) = Browser::start() else {
        crowfly_waive::waived!("no Chromium on this machine");
    };
    let served = Served::dgx();
    for width in [390, 320] {
        browser.size(width, 844);
        for (part, shows) in PARTS {
            browser.open(&format!("http://127.0.0.1:{}/{part}", served.port));
            browser.wait(shows);
            let wide = browser.value("document.documentElement.scrollWidth");
            assert!(
                wide.as_u64() <= Some(width.into()),
                "{part}: {wide} of {width}"
            );
            let wrong = wrong(&browser);
            assert!(
                wrong.is_empty(),
                "{width} {part}:\n  {}",
                wrong.join("\n  ")
            );
            let name = part
                .trim_start_matches('#')
                .split('?')
                .next()
                .unwrap_or_default();
            browser.picture(&format!("{name}-{width}"));
        }
    }
}

/// What has the focus, in words.
fn focused(browser: &Browser) -> String {
    let name = "(document.activeElement?.id || document.activeElement?.name || document.activeElement?.textContent || '').trim()";
    browser.value(name).as_str().unwrap_or_default().to_owned()
}

/// Goes on with Tab until something has the focus.
#[track_caller]
fn tab_to(browser: &Browser, wanted: &str) {
    let mut passed = Vec::new();
    for _ in 0..80 {
        browser.press("Tab");
        let at = focused(browser);
        if at == wanted {
            return;
        }
        passed.push(at);
    }
    panic!("{wanted} cannot be reached: {passed:?}");
}

#[test]
fn everything_can_be_done_without_a_mouse_and_the_focus_is_seen() {
    let Some(browser) = Browser::start() else {
        crowfly_waive::waived!("no Chromium on this machine");
    };
    let served = Served::dgx();
    browser.prefers(&[("prefers-reduced-motion", "reduce")]);
    browser.open(&format!("http://127.0.0.1:{}/", served.port));
    browser.wait(PARTS[0].1);
    browser.press("Tab");
    assert_eq!(focused(&browser), "To the content");
    browser.press("Enter");
    assert_eq!(focused(&browser).as_str(), "content");
    tab_to(&browser, "machine");
    tab_to(&browser, "GPUDirect RDMA");
    let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth");
    assert_eq!(outline, "solid3px");
    browser.press("Enter");
    browser.wait(
        "document.querySelector('#scenes [aria-pressed=true]')?.textContent === 'GPUDirect RDMA'",
    );
    tab_to(&browser, "step");
    for _ in 0..2 {
        browser.press(" ");
    }
    browser.wait("document.querySelector('#now').textContent.startsWith('Arrived.')");
    assert_eq!(browser.text("#count-copies"), "1");
    browser.value("document.querySelector('.skip').focus()");
    tab_to(&browser, "Plan");
    browser.press("Enter");
    browser.wait("document.querySelector('#verdict').textContent");
    tab_to(&browser, "servers-slider");
    let before = browser.text("#verdict");
    browser.press("ArrowRight");
    browser.wait("document.querySelector('[name=servers]').value === '16'");
    browser.wait(&format!(
        "document.querySelector('#verdict').textContent !== {}",
        super::browser::quoted(&before)
    ));
    let said =
        browser.value("document.querySelector('#servers-slider').getAttribute('aria-valuetext')");
    assert_eq!(said, "16 servers, 128 GPUs");
}
