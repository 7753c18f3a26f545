//! What the format's element types are called elsewhere: in DLPack, in NumPy's array interface, in the
//! buffer protocol.

use crowfly_mover::checkpoint::dtype::Dtype;

use crate::dlpack::abi::DLDataType;

/// DLPack's type codes (`DLDataTypeCode`, DLPack 1.1).
mod code {
    pub const INT: u8 = 0;
    pub const UINT: u8 = 1;
    pub const FLOAT: u8 = 2;
    pub const BFLOAT: u8 = 4;
    pub const COMPLEX: u8 = 5;
    pub const BOOL: u8 = 6;
    pub const FLOAT8_E4M3FN: u8 = 10;
    pub const FLOAT8_E4M3FNUZ: u8 = 11;
    pub const FLOAT8_E5M2: u8 = 12;
    pub const FLOAT8_E5M2FNUZ: u8 = 13;
    pub const FLOAT8_E8M0FNU: u8 = 14;
    pub const FLOAT6_E2M3FN: u8 = 15;
    pub const FLOAT6_E3M2FN: u8 = 16;
    pub const FLOAT4_E2M1FN: u8 = 17;
}

/// The element type in DLPack.
pub fn to_dlpack(dtype: Dtype) -> Option<DLDataType> {
    let (code, bits) = match dtype {
        Dtype::Bool => (code::BOOL, 8),
        Dtype::U8 => (code::UINT, 8),
        Dtype::U16 => (code::UINT, 16),
        Dtype::U32 => (code::UINT, 32),
        Dtype::U64 => (code::UINT, 64),
        Dtype::I8 => (code::INT, 8),
        Dtype::I16 => (code::INT, 16),
        Dtype::I32 => (code::INT, 32),
        Dtype::I64 => (code::INT, 64),
        Dtype::F16 => (code::FLOAT, 16),
        Dtype::F32 => (code::FLOAT, 32),
        Dtype::F64 => (code::FLOAT, 64),
        Dtype::BF16 => (code::BFLOAT, 16),
        Dtype::C64 => (code::COMPLEX, 64),
        Dtype::F8_E4M3 => (code::FLOAT8_E4M3FN, 8),
        Dtype::F8_E4M3FNUZ => (code::FLOAT8_E4M3FNUZ, 8),
        Dtype::F8_E5M2 => (code::FLOAT8_E5M2, 8),
        Dtype::F8_E5M2FNUZ => (code::FLOAT8_E5M2FNUZ, 8),
        Dtype::F8_E8M0 => (code::FLOAT8_E8M0FNU, 8),
        Dtype::F6_E2M3 => (code::FLOAT6_E2M3FN, 6),
        Dtype::F6_E3M2 => (code::FLOAT6_E3M2FN, 6),
        Dtype::F4 => (code::FLOAT4_E2M1FN, 4),
        _ => return None,
    };
    let lanes = 1;
    Some(DLDataType { code, bits, lanes })
}

/// The element type of an array that came by DLPack.
pub fn from_dlpack(found: DLDataType) -> Option<Dtype> {
    Dtype::ALL
        .iter()
        .copied()
        .find(|dtype| to_dlpack(*dtype) == Some(found))
}

/// The element type in NumPy's array interface, little-endian; `None` of those that NumPy does not have.
pub fn to_typestr(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::Bool => "|b1",
        Dtype::U8 => "|u1",
        Dtype::I8 => "|i1",
        Dtype::U16 => "<u2",
        Dtype::I16 => "<i2",
        Dtype::F16 => "<f2",
        Dtype::U32 => "<u4",
        Dtype::I32 => "<i4",
        Dtype::F32 => "<f4",
        Dtype::U64 => "<u8",
        Dtype::I64 => "<i8",
        Dtype::F64 => "<f8",
        Dtype::C64 => "<c8",
        _ => return None,
    })
}

/// The element type of an array that came by NumPy's array interface.
pub fn from_typestr(found: &str) -> Option<Dtype> {
    Dtype::ALL
        .iter()
        .copied()
        .find(|dtype| to_typestr(*dtype) == Some(found))
}

/// The element type in the buffer protocol (PEP 3118); `None` of those that it does not have.
pub fn to_format(dtype: Dtype) -> Option<&'static std::ffi::CStr> {
    Some(match dtype {
        Dtype::Bool => c"?",
        Dtype::U8 => c"B",
        Dtype::I8 => c"b",
        Dtype::U16 => c"H",
        Dtype::I16 => c"h",
        Dtype::F16 => c"e",
        Dtype::U32 => c"I",
        Dtype::I32 => c"i",
        Dtype::F32 => c"f",
        Dtype::U64 => c"Q",
        Dtype::I64 => c"q",
        Dtype::F64 => c"d",
        Dtype::C64 => c"Zf",
        _ => return None,
    })
}
