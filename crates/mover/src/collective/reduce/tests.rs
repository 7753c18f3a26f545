use proptest::prelude::*;

use super::*;
use crate::fabric::{Buffer, Caches};

/// The value of a half's bits, by the definition of the format.
fn value(element: Element, bits: u16) -> f64 {
    let (exponent_bits, bias) = match element {
        Element::F16 => (5, 15),
        _ => (8, 127),
    };
    let fraction_bits = 15 - exponent_bits;
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from((bits & 0x7fff) >> fraction_bits);
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1));
    let unit = 2f64.powi(-fraction_bits);
    if exponent == (1 << exponent_bits) - 1 {
        return if fraction == 0.0 {
            sign * f64::INFINITY
        } else {
            f64::NAN
        };
    }
    let (leading, exponent) = if exponent == 0 {
        (0.0, 1)
    } else {
        (1.0, exponent)
    };
    sign * (leading + fraction * unit) * 2f64.powi(exponent - bias)
}

/// The half nearest to a value, of two as near the even one, by looking at the neighbours.
fn nearest(element: Element, wanted: f64) -> u16 {
    if wanted.is_nan() {
        return if element == Element::F16 {
            0x7e00
        } else {
            0x7fc0
        };
    }
    let sign = u16::from(wanted.is_sign_negative()) << 15;
    let infinity = if element == Element::F16 {
        0x7c00
    } else {
        0x7f80
    };
    let magnitude = wanted.abs();
    // Positive numbers are ordered as their bits are.
    let (mut below, mut above) = (0u16, infinity);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if value(element, middle) <= magnitude {
            below = middle
        } else {
            above = middle
        }
    }
    // Infinity stands where the next number would be.
    let ceiling = if above == infinity {
        2.0 * value(element, infinity - 1) - value(element, infinity - 2)
    } else {
        value(element, above)
    };
    if magnitude == f64::INFINITY {
        return sign | infinity;
    }
    let (down, up) = (magnitude - value(element, below), ceiling - magnitude);
    let chosen = if down < up || (down == up && below % 2 == 0) {
        below
    } else {
        above
    };
    sign | chosen
}

#[test]
fn every_half_has_the_value_its_format_says_and_comes_back_unchanged() {
    for element in [Element::F16, Element::Bf16] {
        for bits in 0..=u16::MAX {
            let mut wide = [0; 4];
            widen(element, &bits.to_le_bytes(), &mut wide);
            let single = f32::from_le_bytes(wide);
            let wanted = value(element, bits);
            assert!(
                f64::from(single) == wanted
                    && single.is_sign_negative() == wanted.is_sign_negative()
                    || single.is_nan() && wanted.is_nan(),
                "{element} {bits:#06x}: {single} for {wanted}"
            );
            let mut back = [0; 2];
            narrow(element, &wide, &mut back);
            let back = u16::from_le_bytes(back);
            assert!(
                back == bits || wanted.is_nan(),
                "{element} {bits:#06x}: {back:#06x}"
            );
        }
    }
}

#[test]
fn half_way_between_two_halves_the_even_one_is_taken() {
    for element in [Element::F16, Element::Bf16] {
        for bits in (0..0x7f00u16).step_by(7) {
            let (here, next) = (value(element, bits), value(element, bits + 1));
            if !next.is_finite() {
                continue;
            }
            let middle = (here + next) / 2.0;
            for single in [
                middle as f32,
                (middle as f32).next_up(),
                (middle as f32).next_down(),
            ] {
                let mut half = [0; 2];
                narrow(element, &single.to_le_bytes(), &mut half);
                let wanted = nearest(element, f64::from(single));
                assert_eq!(u16::from_le_bytes(half), wanted, "{element} {single:e}");
            }
        }
    }
}

/// A float of any bits, often a special one.
fn float_bits() -> impl Strategy<Value = u64> {
    let special = [
        0.0f64,
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MIN_POSITIVE,
        5e-324,
        1.0,
        -1.0,
        65504.0,
        65520.0,
        6e-8,
        3e-8,
        f64::MAX,
    ];
    prop_oneof![
        any::<u64>(),
        proptest::sample::select(special.map(f64::to_bits).to_vec()),
        any::<u32>().prop_map(|bits| f64::from(f32::from_bits(bits)).to_bits()),
        any::<u16>().prop_map(|bits| value(Element::F16, bits).to_bits()),
    ]
}

/// One number of any kind out of 64 random bits: floats by value, integers by their lower bits.
fn encode(element: Element, bits: u64) -> Vec<u8> {
    let float = f64::from_bits(bits);
    match element {
        Element::F32 => (float as f32).to_le_bytes().to_vec(),
        Element::F64 => float.to_le_bytes().to_vec(),
        Element::F16 | Element::Bf16 => nearest(element, float).to_le_bytes().to_vec(),
        _ => bits.to_le_bytes()[..element.size()].to_vec(),
    }
}

/// What two numbers become, by the definition and not by the code under test.
fn scalar(element: Element, reduction: Reduction, a: &[u8], b: &[u8]) -> Vec<u8> {
    fn float(a: f64, b: f64, reduction: Reduction) -> f64 {
        if a.is_nan() || b.is_nan() {
            return f64::NAN;
        }
        // total_cmp puts the negative zero below the positive one.
        let (less, more) = if a.total_cmp(&b).is_le() {
            (a, b)
        } else {
            (b, a)
        };
        match reduction {
            Reduction::Min => less,
            Reduction::Max => more,
            Reduction::Sum | Reduction::Mean => a + b,
            _ => a * b,
        }
    }
    let word = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    };
    let (x, y) = (word(a), word(b));
    let bits = match reduction {
        Reduction::And => Some(x & y),
        Reduction::Or => Some(x | y),
        Reduction::Xor => Some(x ^ y),
        _ => None,
    };
    if let Some(bits) = bits {
        return bits.to_le_bytes()[..element.size()].to_vec();
    }
    match element {
        // A sum of two singles in double precision rounds to what their sum in single precision
        // is (Figueroa, "When is double rounding innocuous?"): 53 ≥ 2·24 + 2.
        Element::F32 => {
            let of = |x: u64| f64::from(f32::from_bits(x as u32));
            let sum = float(of(x), of(y), reduction) as f32;
            let sum = if sum.is_nan() { f32::NAN } else { sum };
            sum.to_le_bytes().to_vec()
        }
        Element::F64 => {
            let sum = float(f64::from_bits(x), f64::from_bits(y), reduction);
            let sum = if sum.is_nan() { f64::NAN } else { sum };
            sum.to_le_bytes().to_vec()
        }
        Element::F16 | Element::Bf16 => {
            let of = |x: u64| value(element, x as u16);
            // Rounded to a single first, as the definition says.
            let sum = float(of(x), of(y), reduction) as f32;
            nearest(element, f64::from(sum)).to_le_bytes().to_vec()
        }
        _ => {
            let shift = 64 - 8 * element.size() as u32;
            let signed = |x: u64| (x << shift) as i64;
            let result = match (element, reduction) {
                (_, Reduction::Sum | Reduction::Mean) => x.wrapping_add(y),
                (_, Reduction::Product) => x.wrapping_mul(y),
                (Element::U8, Reduction::Min) => x.min(y),
                (Element::U8, Reduction::Max) => x.max(y),
                (_, Reduction::Min) => (signed(x).min(signed(y)) >> shift) as u64,
                (_, Reduction::Max) => (signed(x).max(signed(y)) >> shift) as u64,
                (_, bits) => panic!("{bits} was worked out above"),
            };
            result.to_le_bytes()[..element.size()].to_vec()
        }
    }
}

proptest! {
    #[test]
    fn a_loop_over_many_gives_what_one_at_a_time_does(
        pairs in proptest::collection::vec((float_bits(), float_bits()), 0..70),
        element in proptest::sample::select(Element::ALL.to_vec()),
        reduction in proptest::sample::select(Reduction::ALL.to_vec()),
    ) {
        let left: Vec<u8> = pairs.iter().flat_map(|(a, _)| encode(element, *a)).collect();
        let right: Vec<u8> = pairs.iter().flat_map(|(_, b)| encode(element, *b)).collect();
        let mut folded = left.clone();
        fold(element, reduction, &mut folded, With::Slice(&right));
        let mut turned = right.clone();
        fold(element, reduction, &mut turned, With::Slice(&left));
        prop_assert_eq!(&folded, &turned, "the order of two does not matter");
        let size = element.size();
        let singles = left.chunks(size).zip(right.chunks(size));
        let wanted: Vec<u8> = singles.flat_map(|(a, b)| scalar(element, reduction, a, b)).collect();
        prop_assert_eq!(&folded, &wanted, "{} {}", element, reduction);
        let memories = [&left, &right].map(|numbers| {
            let memory = Buffer::zeroed(numbers.len().max(1), None).expect("memory").into_backing();
            assert!(memory.copy_in(0, numbers, Caches::Keep));
            memory
        });
        let all = Everywhere { memories: &memories, offset: 0, len: wanted.len(), instead: None };
        fold_everywhere(element, reduction, all, 2);
        let mut finished = wanted;
        finish(element, reduction, &mut finished, 2);
        for memory in memories {
            let mut there = vec![0; finished.len()];
            assert!(memory.copy_out(0, &mut there, Caches::Keep));
            prop_assert_eq!(&there, &finished, "{} {} everywhere", element, reduction);
        }
    }
}

#[test]
fn a_mean_is_divided_once_and_that_of_integers_is_cut_towards_zero() {
    let mut numbers = [7i32, -7, 8].map(i32::to_le_bytes).concat();
    finish(Element::I32, Reduction::Mean, &mut numbers, 3);
    assert_eq!(numbers, [2i32, -2, 2].map(i32::to_le_bytes).concat());
    let mut number = 1f32.to_le_bytes();
    finish(Element::F32, Reduction::Mean, &mut number, 3);
    assert_eq!(f32::from_le_bytes(number), 1.0 / 3.0);
    finish(Element::F32, Reduction::Sum, &mut number, 3);
    assert_eq!(
        f32::from_le_bytes(number),
        1.0 / 3.0,
        "only a mean is divided"
    );
    let mut tiny = [i8::MIN as u8];
    finish(Element::I8, Reduction::Mean, &mut tiny, 200);
    assert_eq!(tiny, [0], "more ranks than the kind can say");
}
