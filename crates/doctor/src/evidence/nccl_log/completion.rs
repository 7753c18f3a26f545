//! Work completions that failed.

use serde::Serialize;

/// A failed completion, as the network reported it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompletionError {
    /// InfiniBand or RoCE.
    Ib {
        /// Address of the peer, without the port.
        peer: Option<String>,
        /// `ibv_wc_status` (4: local protection, 12: retries exceeded).
        status: u32,
        /// Opcode as printed; undefined by the verbs specification after a failure.
        opcode: Option<u32>,
        /// The vendor's error number.
        vendor_error: Option<u32>,
        /// The request (`Send`, `Recv`), where printed.
        request: Option<String>,
        /// The local GID, where printed.
        local_gid: Option<String>,
        /// The remote GID, where printed.
        remote_gid: Option<String>,
        /// The NIC, where printed.
        hca: Option<String>,
    },
    /// libfabric.
    Ofi {
        /// Return code of the plugin.
        code: Option<u32>,
        /// The provider's error number.
        error: Option<u32>,
        /// Its words, as far as they do not differ between connections.
        text: String,
    },
}

impl CompletionError {
    /// Reads the words of every release: `Got completion with error 12, opcode 1, len 0, vendor err
    /// 129`, `Got completion from peer 10.0.0.1<43210> with status=12 opcode=129 len=0 vendor err 129
    /// (Send) localGid … remoteGids… hca mlx5_0`, `status=LOC_PROT_ERR(4) … vendor_err=81`, and those
    /// of aws-ofi-nccl.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some((_, rest)) = text.split_once("completed with error. ") {
            return Some(Self::ofi(rest));
        }
        let (_, rest) = text.split_once("Got completion ")?;
        let status = after_any(rest, &["status=", "with error ", "error "])?;
        Some(Self::Ib {
            peer: after(rest, "from peer ")
                .map(|t| until(t, &['<', ' ']))
                .map(str::to_owned),
            status: named_number(status)?,
            opcode: after_any(rest, &["opcode=", "opcode "]).and_then(named_number),
            vendor_error: after_any(rest, &["vendor err ", "vendor_err="]).and_then(named_number),
            request: after_any(rest, &["vendor err "])
                .and_then(|t| t.split_once(" ("))
                .map(|(_, t)| until(t, &[')']))
                .filter(|t| !t.is_empty() && t.len() < 32)
                .map(str::to_owned),
            local_gid: word_after(rest, "localGid "),
            remote_gid: word_after(rest, "remoteGids"),
            hca: word_after(rest, "hca "),
        })
    }

    fn ofi(rest: &str) -> Self {
        let error = after(rest, "Error: ");
        let words = error
            .and_then(|t| t.split_once('('))
            .map_or(rest, |(_, t)| t);
        // What follows names addresses of this one connection.
        let words = words.split(" My EFA addr").next().unwrap_or(words);
        Self::Ofi {
            code: after(rest, "RC: ").and_then(named_number),
            error: error.and_then(named_number),
            text: closed(words.trim_end_matches([')', '.', ' '])),
        }
    }
}

/// The words with each parenthesis closed that they open.
fn closed(words: &str) -> String {
    let open = words.matches('(').count();
    let missing = open.saturating_sub(words.matches(')').count());
    format!("{words}{}", ")".repeat(missing))
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(_, rest)| rest)
}

fn after_any<'a>(text: &'a str, marks: &[&str]) -> Option<&'a str> {
    marks.iter().find_map(|mark| after(text, mark))
}

fn until<'a>(text: &'a str, ends: &[char]) -> &'a str {
    text.find(ends).map_or(text, |at| &text[..at])
}

fn word_after(text: &str, mark: &str) -> Option<String> {
    let word = after(text, mark)?.trim_start_matches([' ', ':']);
    let word = until(word, &[' ', ',']);
    (!word.is_empty()).then(|| word.to_owned())
}

/// `12`, or `LOC_PROT_ERR(4)`.
fn named_number(text: &str) -> Option<u32> {
    let digits = |t: &str| -> Option<u32> {
        let end = t.bytes().take_while(u8::is_ascii_digit).count();
        t.get(..end)?.parse().ok()
    };
    digits(text).or_else(|| {
        let name = text
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b' ' | b'-'))
            .count();
        digits(text.get(name..)?.strip_prefix('(')?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_of_every_release_read() {
        let Some(CompletionError::Ib {
            status,
            vendor_error,
            peer,
            ..
        }) = CompletionError::parse(
            "NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
        )
        else {
            panic!("not read");
        };
        assert_eq!((status, vendor_error, peer), (12, Some(129), None));

        assert_eq!(
            CompletionError::parse(
                "NET/IB: Got completion from peer 10.0.0.1<43210> with status=4 opcode=0 len=0 vendor err 81 \
                 (Recv) localGid fe80::1 remoteGidsfe80::2 hca mlx5_3"
            ),
            Some(CompletionError::Ib {
                peer: Some("10.0.0.1".into()),
                status: 4,
                opcode: Some(0),
                vendor_error: Some(81),
                request: Some("Recv".into()),
                local_gid: Some("fe80::1".into()),
                remote_gid: Some("fe80::2".into()),
                hca: Some("mlx5_3".into()),
            })
        );

        let Some(CompletionError::Ib {
            status,
            vendor_error,
            hca,
            ..
        }) = CompletionError::parse(
            "NET/IB: Got completion from peer 10.0.0.1<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=X(1) \
             vendor_err=129  hca mlx5_0",
        )
        else {
            panic!("not read");
        };
        assert_eq!(
            (status, vendor_error, hca.as_deref()),
            (12, Some(129), Some("mlx5_0"))
        );
    }

    #[test]
    fn libfabric_errors_read_without_the_addresses_of_one_connection() {
        assert_eq!(
            CompletionError::parse(
                "NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver) My EFA addr: x"
            ),
            Some(CompletionError::Ofi {
                code: Some(103),
                error: Some(4126),
                text: "Unresponsive receiver".into()
            })
        );
    }

    #[test]
    fn a_parenthesis_within_the_words_is_closed() {
        let text = "NET/OFI Request 0x1 completed with error. RC: 5. Error: 7 (Gone (no answer) My EFA addr: x). Completed length: 0";
        assert!(matches!(
            CompletionError::parse(text),
            Some(CompletionError::Ofi { text, .. }) if text == "Gone (no answer)"
        ));
    }

    #[test]
    fn other_lines_are_not_completions() {
        for text in [
            "",
            "NET/IB : No device found.",
            "Got completion from peer",
            "Got completion status=x",
        ] {
            assert_eq!(CompletionError::parse(text), None, "{text}");
        }
    }
}
