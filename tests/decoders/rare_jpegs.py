"""JPEGs of subsamplings that Pillow does not write: 47 x 33 pixels of a photograph."""

from __future__ import annotations

import base64

import torch

_FILES = {
    "4:1:1": (
        "|JeWF01!$>Nk#wx0RR9200961|JwjV02B@n5)Ta&5)cv>6%-gAG9exu93DL^E+jHZKuk+VKt@GST61DhRc%&"
        "9Mr4R(ZFhTtf`Lw8jhBplmUDiAeE-`3Lje^R7akfOJ0T%Ed{ahKe0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+"
        "R-e0+R-e0+R-e0+R-e0+R-e0+R-e0=}F01*fPApkD}0YLx)5di}c0sq7R9{>OW1pxs80RaI300000000010s"
        "{mE1_uZU3Jd?l0JRVR0s#X90t5pE1q1{D00Dgg0s{a95d{(<F+m0sQDFxnaTGFvk)a49Lb1UWQqk}vGh%Xr2"
        "?`b$7#SKRCMPH<Dl|1VH#j*uLqtVJM@UIZQ&d$}S6EqEV`OD!XJ~0^b98lfcX)YvgM@{Khlq)al9QB`mY0~B"
        "nxdnmrKYE-sj9NGw6(UkxVgH*!^FkL$H>Xb($mz{*4NnC+Tr5k<mKk)=;`Y5^7Hid_V@Vt`v1fL9{~UZ0RaI"
        "40RaI40RR91000010s{mE1_uZU3Jd?l0JRYS0s#U91Oo&I1q1{D0Rndb0RjUN1O*{61`<J02Vrp&A~Jyp6he"
        "`qvB3!=Gg9ysVsg<679=#`CGi&+85$-hC@Cs6Ha9pqIzvQ7Mn_0VN>fx-R##YAT4Q8oW@l(=YIAgTc6WGrdV"
        "+(5g@%WSiHeewl$Dm3n3<ZQqok##r>Lo_va__cwzs&sy28W6#m2|T$;#5x)YaD4*xB0R<K*S$=jiF`^7Hid_"
        "V@Vt`v2Mh3<CiG0ucid06zeYxja%&g@m6$n#22NoRPrD09Ge=bDEBIWH=;|jx$-)_)C`LktX!W>r#Z{nkcNK"
        "^)5Ra$AeWhE2A6)AkIcJSRM0LUO@3iGsxi9wDvQW<;zw5&<3oc3}n$oV=c{Nv2FX{^I7-NmW79>HH;1peJWU"
        "kNheMRUMpIA8B23kESz?$NSPkgQCLapYaNRoSarxhl~<ZEf-zXqS&=Eh8*^5ngeU+E3b;ziqFOG)4so88`Q%"
        "trgZNQJMXp*Ww&_L3-8G#50C-f9^q~os<LWAgqxXdrR*=|C|Je"
    ),
    "4:4:0": (
        "|JeWF01!$>Nk#wx0RR9200961|JwjV02B@n5)Ta&5)cv>6%-gAG9exu93DL^E+jHZKuk+VKt@GST61DhRc%&"
        "9Mr4R(ZFhTtf`Lw8jhBplmUDiAeE-`3Lje^R7akfOJ0T%Ed{ahKe0+R-e0+R-e0+R-e0+R-e0+R-e0+R-e0+"
        "R-e0+R-e0+R-e0+R-e0+R-e0+R-e0=}F01*fPApkD}0TKWL5di}c0sq7R9{>OW1pxs80RaI300000000010s"
        "{mE1_uZU3Jd?l0JRVR0s#X90t5pE1q1{D00Dgg0s{a95d{(<F+m0sQDFxnaTGFvk)a49Lb1UWQqk}vGh%Xr2"
        "?`b$7#SKRCMPH<Dl|1VH#j*uLqtVJM@UIZQ&d$}S6EqEV`OD!XJ~0^b98lfcX)YvgM@{Khlq)al9QB`mY0~B"
        "nxdnmrKYE-sj9NGw6(UkxVgH*!^FkL$H>Xb($mz{*4NnC+Tr5k<mKk)=;`Y5^7Hid_V@Vt`v1fL9{~UZ0RaI"
        "40RaI40RR91000010s{mE1_uZU3Jd?l0JRYS0s#U91Oo&I1q1{D0Rndb0RjUN1O*{61`<J02Vrp&A~Jyp6he"
        "`qvB3!=Gg9ysVsg<679=#`CGi&+85$-hC@Cs6Ha9pqIzvQ7Mn_0VN>fx-R##YAT4Q8oW@l(=YIAgTc6WGrdV"
        "+(5g@%WSiHeewl$Dm3n3<ZQqok##r>Lo_va__cwzs&sy28W6#m2|T$;#5x)YaD4*xB0R<K*S$=jiF`^7Hid_"
        "V@Vt`v2Mh3<CiG0ucid06zeYxja)(2Ds6%v*BSU&}OOXS4KDpL7a?cw~dHw&--Vbk-*3RRws9JnxWq{t@;pK"
        "ommbEBx8)zUO@3iGsxi588k_~GCI`OtNWl0XCjb+IOeS)3}n_#nj+ix!RDXkhg^gCREW&JjI=C0IjeI<Fh(k"
        ")D-z>#n+FFzm2OKiB{(B)Yjre5nG8Xslcxi(6`>3vKmcG;a~g{!izgkb#4zU>=~+1zkmO8{YFXr1Q-k<aZdx"
        "a{=|xKbxcjDx1ZO|q6jdRzNcvGtl3S0cqL36dAG|24fZoUd*#"
    ),
}

RARE = {
    name: torch.frombuffer(bytearray(base64.b85decode(text)), dtype=torch.uint8)
    for name, text in _FILES.items()
}
"""uint8 [num_bytes] by subsampling, written by libjpeg-turbo."""
