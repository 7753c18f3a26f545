//! Given ranks that share memory or reach each other by TCP, when they call a collective, then each
//! has what the definition says, whatever the algorithm, the kind of number and the size.

#[path = "collective_support/ranks.rs"]
mod ranks;

use crowfly_mover::collective::{
    Algorithm, CollectiveReceipt, Element, Group, Reduction, SHARED_ALIGNMENT,
};
use crowfly_route::collective::Collective;
use ranks::{SOON, Spread, ranks};

const F32: Element = Element::F32;

/// Small whole numbers, which sums of few ranks of every kind can hold exactly.
fn value(rank: usize, at: usize) -> i64 {
    ((rank * 7 + at * 3) % 5) as i64
}

fn encode(element: Element, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let half = |value: f64, fraction: u32, bias: i32| -> u16 {
        if value == 0.0 {
            return 0;
        }
        let exponent = value.abs().log2().floor() as i32;
        let rest = value.abs() / 2f64.powi(exponent) - 1.0;
        let rest = rest * f64::from(1u32 << fraction);
        assert_eq!(rest.fract(), 0.0, "{value} is a half");
        let sign = u16::from(value < 0.0) << 15;
        sign | ((exponent + bias) as u16) << fraction | rest as u16
    };
    let one = |value: f64| match element {
        Element::F32 => (value as f32).to_le_bytes().to_vec(),
        Element::F64 => value.to_le_bytes().to_vec(),
        Element::F16 => half(value, 10, 15).to_le_bytes().to_vec(),
        Element::Bf16 => half(value, 7, 127).to_le_bytes().to_vec(),
        Element::I8 => (value as i64 as i8).to_le_bytes().to_vec(),
        Element::I16 => (value as i16).to_le_bytes().to_vec(),
        Element::I32 => (value as i32).to_le_bytes().to_vec(),
        Element::I64 => (value as i64).to_le_bytes().to_vec(),
        Element::U8 => (value as i64 as u8).to_le_bytes().to_vec(),
    };
    values.into_iter().flat_map(one).collect()
}

fn numbers(element: Element, rank: usize, count: usize) -> Vec<u8> {
    encode(element, (0..count).map(|at| value(rank, at) as f64))
}

/// What a reduction of all ranks' numbers is, by its definition.
fn reduced(element: Element, reduction: Reduction, n: usize, count: usize) -> Vec<u8> {
    let one = |at: usize| {
        let all = (0..n).map(|rank| value(rank, at));
        let sum: i64 = all.clone().sum();
        let whole = !matches!(
            element,
            Element::F32 | Element::F64 | Element::F16 | Element::Bf16
        );
        match reduction {
            Reduction::Sum => sum as f64,
            Reduction::Min => all.min().unwrap_or_default() as f64,
            Reduction::Max => all.max().unwrap_or_default() as f64,
            Reduction::Mean if whole => (sum / n as i64) as f64,
            Reduction::Mean => sum as f64 / n as f64,
            Reduction::Product => all.product::<i64>() as f64,
            Reduction::And => all.reduce(|a, b| a & b).unwrap_or_default() as f64,
            Reduction::Or => all.fold(0, |a, b| a | b) as f64,
            Reduction::Xor => all.fold(0, |a, b| a ^ b) as f64,
        }
    };
    encode(element, (0..count).map(one))
}

/// Calls an all-reduce of each kind by each algorithm that the group has.
fn try_all(group: &mut Group, counts: &[usize]) {
    let (me, n) = (group.rank(), group.size());
    let algorithms = Algorithm::of(Collective::AllReduce, group.hosts(), n);
    for count in counts.iter().copied() {
        for algorithm in &algorithms {
            for element in Element::ALL {
                for reduction in Reduction::ALL {
                    if !reduction.suits(element) {
                        continue;
                    }
                    // A mean of halves is exact where the ranks are a power of two.
                    if element.is_half() && reduction == Reduction::Mean && !n.is_power_of_two() {
                        continue;
                    }
                    for options in [
                        SOON.by(*algorithm),
                        SOON.by(*algorithm).in_single_precision(),
                    ] {
                        let mut data = numbers(element, me, count);
                        let receipt = group.all_reduce(&mut data, element, reduction, options);
                        let receipt = receipt.expect("reduced");
                        assert_eq!(receipt.algorithm, *algorithm);
                        let wanted = reduced(element, reduction, n, count);
                        assert!(
                            data == wanted,
                            "{algorithm} {element} {reduction} {count} {n}"
                        );
                        if !element.is_half() {
                            break;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_kind_of_number_is_reduced_by_every_algorithm_over_shared_memory() {
    for n in [1, 2, 3, 5] {
        ranks(n, Spread::Shared, |group| try_all(group, &[0, 1, 13, 1009]));
    }
}

#[test]
fn every_kind_of_number_is_reduced_by_every_algorithm_over_tcp() {
    ranks(3, Spread::Tcp, |group| try_all(group, &[1, 13]));
}

#[test]
fn buffers_larger_than_all_chunks_between_two_ranks_are_reduced() {
    for (n, spread) in [(3, Spread::Shared), (2, Spread::Tcp)] {
        ranks(n, spread, |group| {
            let (me, n) = (group.rank(), group.size());
            let count = 560_003;
            for algorithm in Algorithm::of(Collective::AllReduce, group.hosts(), n) {
                let mut data = numbers(F32, me, count);
                let receipt = group.all_reduce(&mut data, F32, Reduction::Sum, SOON.by(algorithm));
                receipt.expect("reduced");
                assert!(
                    data == reduced(F32, Reduction::Sum, n, count),
                    "{algorithm}"
                );
            }
        });
    }
}

#[test]
fn any_number_of_ranks_does_every_collective() {
    for n in 1..=9 {
        let spread = if n % 2 == 0 {
            Spread::Tcp
        } else {
            Spread::Shared
        };
        ranks(n, spread, |group| every_collective(group, 101));
    }
}

#[test]
fn every_collective_moves_parts_larger_than_a_board() {
    ranks(2, Spread::Shared, |group| every_collective(group, 300_007));
}

fn every_collective(group: &mut Group, count: usize) {
    let (me, n) = (group.rank(), group.size());
    let hosts = group.hosts().clone();
    for algorithm in Algorithm::of(Collective::Broadcast, &hosts, n) {
        for root in [0, n - 1] {
            let mut data = numbers(F32, me, count);
            group
                .broadcast(&mut data, root, F32, SOON.by(algorithm))
                .expect("sent");
            assert!(data == numbers(F32, root, count), "{algorithm}");
        }
    }
    for algorithm in Algorithm::of(Collective::AllGather, &hosts, n) {
        let mut all = vec![0; n * count * 4];
        let receipt = group.all_gather(&numbers(F32, me, count), &mut all, F32, SOON.by(algorithm));
        assert_eq!(receipt.expect("gathered").size.0, all.len() as u64);
        let wanted: Vec<u8> = (0..n).flat_map(|rank| numbers(F32, rank, count)).collect();
        assert!(all == wanted, "{algorithm}");
    }
    for algorithm in Algorithm::of(Collective::ReduceScatter, &hosts, n) {
        let mut part = vec![0; count * 4];
        let input = numbers(F32, me, n * count);
        let receipt =
            group.reduce_scatter(&input, &mut part, F32, Reduction::Max, SOON.by(algorithm));
        receipt.expect("reduced");
        let wanted = reduced(F32, Reduction::Max, n, n * count);
        assert!(
            part == wanted[me * count * 4..(me + 1) * count * 4],
            "{algorithm}"
        );
    }
    for algorithm in Algorithm::of(Collective::AllToAll, &hosts, n) {
        let mut output = vec![0; n * count * 4];
        let input = numbers(F32, me, n * count);
        group
            .all_to_all(&input, &mut output, F32, SOON.by(algorithm))
            .expect("exchanged");
        let part = |rank: usize| {
            numbers(F32, rank, n * count)[me * count * 4..(me + 1) * count * 4].to_vec()
        };
        let wanted: Vec<u8> = (0..n).flat_map(part).collect();
        assert!(output == wanted, "{algorithm}");
    }
    // Rank a has a + 1 bytes for rank 0, a + 2 for rank 1 and so on.
    let to: Vec<usize> = (0..n).map(|rank| me + rank + 1).collect();
    let input: Vec<u8> = to
        .iter()
        .enumerate()
        .flat_map(|(r, c)| vec![(16 * me + r) as u8; *c])
        .collect();
    let mut output = vec![0; input.len()];
    group
        .all_to_all_v((&input, &to), (&mut output, &to), Element::U8, SOON)
        .expect("exchanged");
    let from = to.iter().enumerate();
    let wanted: Vec<u8> = from
        .flat_map(|(r, c)| vec![(16 * r + me) as u8; *c])
        .collect();
    assert_eq!(output, wanted);
    for algorithm in Algorithm::of(Collective::Barrier, &hosts, n) {
        group.barrier(SOON.by(algorithm)).expect("all came");
    }
}

#[test]
fn ranks_of_several_hosts_reduce_inside_first_and_say_what_went_which_way() {
    let receipts = ranks(4, Spread::Hosts(2), |group| {
        try_all(group, &[1, 1009]);
        every_collective(group, 57);
        let mut data = numbers(F32, group.rank(), 100_000);
        let receipt = group
            .all_reduce(&mut data, F32, Reduction::Sum, SOON)
            .expect("reduced");
        assert!(data == reduced(F32, Reduction::Sum, 4, 100_000));
        receipt
    });
    for receipt in receipts {
        assert_eq!(
            (receipt.algorithm, receipt.hosts),
            (Algorithm::Hierarchical, 2)
        );
        let moved: Vec<(&str, u64)> = receipt
            .moved
            .iter()
            .map(|m| (m.path.as_str(), m.bytes.0))
            .collect();
        // Half of the 400 kB to the other rank of the host twice; half of that half to the rank on
        // the other host twice.
        assert_eq!(moved, [("shm", 400_000), ("tcp", 200_000)]);
        assert!(receipt.bus_bandwidth().is_some());
    }
}

#[test]
fn hosts_with_different_numbers_of_ranks_reduce_as_well() {
    ranks(3, Spread::Hosts(2), |group| try_all(group, &[1, 101]));
}

#[test]
fn results_are_the_same_bits_at_all_ranks_and_each_time() {
    let noisy = |rank: usize| -> Vec<u8> {
        // Numbers of very different sizes: another order of adding shows.
        let mut state = rank as u32 + 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 * 2f32.powi((state % 40) as i32 - 20)
        };
        (0..5003).flat_map(|_| next().to_le_bytes()).collect()
    };
    for spread in [Spread::Shared, Spread::Hosts(2)] {
        let runs: Vec<Vec<Vec<Vec<u8>>>> = (0..2)
            .map(|_| {
                ranks(5, spread, move |group| {
                    let all = Algorithm::of(Collective::AllReduce, &group.hosts().clone(), 5);
                    let each = |algorithm| {
                        let mut data = noisy(group.rank());
                        let options = SOON.by(algorithm);
                        group
                            .all_reduce(&mut data, F32, Reduction::Sum, options)
                            .expect("reduced");
                        data
                    };
                    all.into_iter().map(each).collect()
                })
            })
            .collect();
        assert!(runs[0] == runs[1], "each time");
        assert!(
            runs[0].iter().all(|rank| *rank == runs[0][0]),
            "at all ranks"
        );
    }
}

#[test]
fn sums_in_single_precision_are_rounded_once() {
    // 1 + 2^-8 + 2^-8: in bfloat16 each half of the last place is lost, together they are not. Few numbers
    // go by posts, many block by block, and those in the group's memory where they lie.
    let bits = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
    for count in [1, 70_001] {
        let own = move |group: &Group| match group.rank() {
            0 => bits(1.0).repeat(count),
            _ => bits(2f32.powi(-8)).repeat(count),
        };
        let results = ranks(3, Spread::Shared, move |group| {
            let mut all = Vec::new();
            for way in [Algorithm::Flat, Algorithm::Ring] {
                let narrow = SOON.by(way);
                for options in [narrow, narrow.in_single_precision()] {
                    let mut data = own(group);
                    group
                        .all_reduce(&mut data, Element::Bf16, Reduction::Sum, options)
                        .expect("reduced");
                    all.push(data);
                }
            }
            for options in [SOON, SOON.in_single_precision()] {
                let mut data = own(group);
                let mut buffer = group.buffer(data.len(), SOON).expect("a buffer");
                buffer.write(0, &data).expect("inside");
                group
                    .all_reduce_in(
                        &mut buffer,
                        0..data.len(),
                        Element::Bf16,
                        Reduction::Sum,
                        options,
                    )
                    .expect("reduced");
                buffer.read(0, &mut data).expect("inside");
                all.push(data);
            }
            all
        });
        let (lost, kept) = (
            bits(1.0).repeat(count),
            bits(1.0 + 2f32.powi(-7)).repeat(count),
        );
        for all in results {
            let [flat, flat_wide, _, ring_wide, there, there_wide] = all.try_into().expect("six");
            let wide: [Vec<u8>; 3] = [flat_wide, ring_wide, there_wide];
            assert!(wide.iter().all(|sums| *sums == kept), "{count} wide");
            assert!(
                [flat, there].iter().all(|sums| *sums == lost),
                "{count} narrow"
            );
        }
    }
}

#[test]
fn a_part_of_a_group_works_by_itself() {
    let seen = ranks(5, Spread::Shared, |group| {
        let color = group.rank() as u32 % 2;
        let mut part = group.split(color, SOON).expect("a part");
        let mut data = numbers(F32, group.rank(), 1);
        part.all_reduce(&mut data, F32, Reduction::Sum, SOON)
            .expect("reduced");
        group.barrier(SOON).expect("the whole still works");
        (part.origin().to_vec(), data)
    });
    let sum = |ranks: &[usize]| {
        encode(
            F32,
            [ranks.iter().map(|r| value(*r, 0)).sum::<i64>() as f64],
        )
    };
    assert_eq!(seen[2], (vec![0, 2, 4], sum(&[0, 2, 4])));
    assert_eq!(seen[3], (vec![1, 3], sum(&[1, 3])));
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_anything_moves() {
    ranks(1, Spread::Shared, |group| {
        let odd = group
            .all_reduce(&mut [0; 5], F32, Reduction::Sum, SOON)
            .expect_err("odd");
        assert_eq!(
            odd.to_string(),
            "all-reduce: 5 bytes are no whole number of f32"
        );
        let short = group
            .all_gather(&[0; 4], &mut [0; 8], F32, SOON)
            .expect_err("too long");
        assert_eq!(short.code(), "bad-collective");
        let bits = group
            .all_reduce(&mut [0; 4], F32, Reduction::Xor, SOON)
            .expect_err("no integers");
        assert_eq!(bits.to_string(), "all-reduce: the xor of f32 is none");
        let root = group
            .broadcast(&mut [0; 4], 1, F32, SOON)
            .expect_err("no such rank");
        assert_eq!(root.to_string(), "broadcast: there is no rank 1 among 1");
        group.barrier(SOON).expect("nothing is broken by that");
    });
}

/// Has every rank reduce a range of a buffer of its group; answers what is in all of it afterwards, and
/// the receipt.
fn reduce_in_a_buffer(
    spread: Spread,
    n: usize,
    element: Element,
    reduction: Reduction,
    count: usize,
) -> Vec<(Vec<u8>, bool, CollectiveReceipt)> {
    ranks(n, spread, move |group| {
        let mine = numbers(element, group.rank(), count);
        let (start, end) = (SHARED_ALIGNMENT, SHARED_ALIGNMENT + mine.len());
        let mut buffer = group.buffer(end + 7, SOON).expect("a buffer");
        buffer.write(start, &mine).expect("inside");
        let receipt = group.all_reduce_in(&mut buffer, start..end, element, reduction, SOON);
        let receipt = receipt.expect("it is reduced");
        let mut all = vec![0; buffer.len()];
        buffer.read(0, &mut all).expect("inside");
        (all, buffer.is_shared(), receipt)
    })
}

#[test]
fn numbers_in_the_groups_own_memory_are_reduced_where_they_lie_and_nothing_around_them() {
    for (n, count) in [(1, 5), (2, 3), (2, 100_003), (3, 5_000), (4, 40_001)] {
        for (element, reduction) in [
            (F32, Reduction::Sum),
            (Element::F64, Reduction::Max),
            (Element::U8, Reduction::Min),
            (Element::I16, Reduction::Mean),
        ] {
            let wanted = reduced(element, reduction, n, count);
            for (all, shared, receipt) in
                reduce_in_a_buffer(Spread::Shared, n, element, reduction, count)
            {
                let (before, rest) = all.split_at(SHARED_ALIGNMENT);
                let (here, after) = rest.split_at(wanted.len());
                assert_eq!(here, wanted, "{n} ranks, {count} {element} by {reduction}");
                assert!(before.iter().chain(after).all(|byte| *byte == 0));
                assert!(shared);
                assert_eq!(receipt.algorithm, Algorithm::InPlace);
                let moved: u64 = receipt.moved.iter().map(|moved| moved.bytes.0).sum();
                let least = (n - 1) as u64 * wanted.len() as u64 / n as u64;
                assert!(moved >= least, "{moved} of {least}");
            }
        }
    }
}

#[test]
fn a_buffer_of_ranks_on_several_hosts_is_reduced_over_the_network() {
    let wanted = reduced(F32, Reduction::Sum, 2, 1000);
    for (all, shared, receipt) in reduce_in_a_buffer(Spread::Hosts(1), 2, F32, Reduction::Sum, 1000)
    {
        assert_eq!(&all[SHARED_ALIGNMENT..][..wanted.len()], wanted);
        assert!(!shared);
        assert_ne!(receipt.algorithm, Algorithm::InPlace);
    }
}

#[test]
fn ranks_that_reduce_different_places_of_a_buffer_all_hear_it() {
    let failed = ranks(2, Spread::Shared, |group| {
        let mut buffer = group.buffer(1024, SOON).expect("a buffer");
        let start = 64 * group.rank();
        let done = group.all_reduce_in(&mut buffer, start..start + 64, F32, Reduction::Sum, SOON);
        done.expect_err("they differ").to_string()
    });
    assert_eq!(
        failed[0],
        "the ranks called different things in call 1: rank 0 called all-reduce of 16 f32 by sum in buffer 1 of the group \
         from byte 0 on (in-place), rank 1 called all-reduce of 16 f32 by sum in buffer 1 of the group from byte 64 on (in-place)"
    );
    assert_eq!(failed[1], failed[0]);
}

#[test]
fn buffers_of_different_lengths_and_ranges_that_do_not_fit_are_refused() {
    let failed = ranks(2, Spread::Shared, |group| {
        let len = 1024 * (1 + group.rank());
        group.buffer(len, SOON).expect_err("they differ").code()
    });
    assert_eq!(failed, ["bad-collective"; 2]);
    ranks(2, Spread::Shared, |group| {
        let mut buffer = group.buffer(128, SOON).expect("a buffer");
        for range in [0..192, 4..8] {
            let done = group.all_reduce_in(&mut buffer, range, F32, Reduction::Sum, SOON);
            assert_eq!(done.expect_err("it does not fit").code(), "bad-collective");
        }
        let tree = SOON.by(Algorithm::Tree);
        let done = group.all_reduce_in(&mut buffer, 0..128, F32, Reduction::Sum, tree);
        assert_eq!(done.expect_err("no other way").code(), "bad-collective");
        assert!(buffer.write(127, &[1, 2]).is_err());
        let mut part = group.split(0, SOON).expect("a part");
        let done = part.all_reduce_in(&mut buffer, 0..128, F32, Reduction::Sum, SOON);
        assert_eq!(
            done.expect_err("another group").to_string(),
            "all-reduce: the buffer is of another group"
        );
        let done = group.all_reduce_in(&mut buffer, 0..128, F32, Reduction::Sum, SOON);
        assert!(done.is_ok(), "what was refused moved nothing");
    });
}
