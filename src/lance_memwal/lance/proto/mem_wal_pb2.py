"""The messages of `mem_wal.proto`, as classes.

They are made of the file's descriptor, not by generated code: that works only with the releases of protobuf around the one
that generated it, and applications have protobuf in many versions. Invariant: the descriptor is that of `mem_wal.proto` (a
test compiles it and compares).
"""

from base64 import b85decode

from google.protobuf import descriptor_pool, message_factory

DESCRIPTOR_BYTES = (
    b"3Jq;#ZC`g`Y%XweZ**@G5N%~`cVTQUW^ZzBVRSBbF(MTT1XXouWD*Su1$JR<b!8X<AOR>0BEbO)2UBxYVPb4$5)ujuXJu|>a$$67Z*CX?AOR=@"
    b"5)29iaA9<47y=*xC<ziA3J+;+Uu|V=Z*qBGVtI6Ba~K040Vo7W0Ehtr5*i8(aA<jRX=7n*Uvh7Ea~K350Vo7W0f+$s5*`W>aB^vFVRCt2Yh`&~"
    b"VtI6Ba~K660Vo7W0*C<tLJ|rPUukY%ZDnn5a(Q23d30rSLJ$fLUvOx7b7^B?Y+rJ3cXL7%3KCy%a%pX0a(Q2CWqDs>d30rSA~FgOQ)ppwWJYOa"
    b"Y-B}lbaHtT5DExpX=Q9=Uuk3*0U!Y=2@(wo1$JR<b!8X=AOR>0BHscE4O3`ga%4?mZfRy^b95393I}#&a&u{KZWsX|0Vo6#6bcM?a%psBa$jX|"
    b"Z)0c}0w4h>1QI6-A97`IY+-p{VP<q?a$k30Y+q$=baHuLaBp*IbZKvH7y}>yC<GED3LJM~Y+q$=baHuLaBp*IbZKvHUu<D>bYF92Wo{S*AOR=@"
    b"5*i8;V|8+JWo~p|XJu|>a$$67Z*CX{AOR=@5-SP_b8~cIVr*q|7ziK(C<`(fE^TFPcVTQUW^ZzBVRSBbF)mYcRAFLlWfBz%4RdH=a%5j~aAjj("
    b"X=E4*AOR>15-17?b7*05WM64y7z-c)C<`(cE^TFPcVTQUW^ZzBVRSBbF)megX=D;U3KMf^VRB?&W@%+?WM5@&baH8Ba~KXF11JkJAuerYZFga8"
    b"E@p3XZDDjSb}=qfXkl_>MrmbiWJPXta(NOC3I=m@VRUtK7!M!;C<P)Y3JOzna%pa7P+@6u5(^3gYh`&D0U!Y=2@(wo1$JR<b!8X=AOR=|BFX^@"
    b"4O3`ga%5?4XGUpdY-AD;3J7LtWo%?$X=E4yAOR=|5)ujub8mHWV`X1yWOEn-AOk1`5*7*xbaG*Cb7pUHZ5RU}0VoMb0Ehtr5*G>zWq5FMWpi_B"
    b"Z*CX_AOR=|NCAie0TL4m3vy+1b!>EBba`-P7zH2!C<ziU3JP#xa$#*{bY*gL7zQ8%C<`(iE^TFPcVTQUW^ZzBVRSBbF)mYda%pa7P+@6uLJSHD"
    b"UvzR|ZgXaDa&1Bl3JYIlcyMxMb8~5LZX!?$3{z-fa%5?4XH#%xV-gPv2Xk;`V_#`x7y%#wC=C)X3I=9rWo%?~7y=*zC<`(lE^TFPcVTQUW^ZzB"
    b"VRSBbF)mYRVRB??Zf8bmWo%?3Pzn%3Z*6d4V{~O?Q*%^dVr*p+C<+L3Xkl_>Uuk3*0U!Y=3o;fiZDnnDVQemDZ*py6bS`!=E>(4DWD*hz3TI_*"
    b"WpZJ3X>V>A0w4h>1R_}q3`uTeWq3njbYp0Ba1s&<3TbX+Wq4n1VQpm?0U!Y=2@*9531eY(XJ~X^b#NF0AOk21G9oT*Wo>t1Y%XSRa&2LBE_N|4"
    b"LvL+xVPkY<WK(lgVPb4$BE16&5=~`oS7B^PZe(S6L}hegX>4;68VV9~Zeeh9Xm501baP*AX>4q1a~J_20Vo3!5()}#b!}gBXkl_>a~J|30VoX;"
    b"9SRU>Zft38WnXh{VQ_P3Z*+4Q10Vq?3`hWo0Ra*=3J!B<VRB??Zf9R}aAjk27zZE&C<`(kE^TFPcVTQUW^ZzBVRSBbF)mYRVRB??Zf8?)Wn&T="
    b"3KDH$X>N33X>Mg?UukY+Wq4(C7ziK(C<zii3KC;)ZE#^@bY)~;b8~cIVr*q|7zrQ)C<`(oE^TFPcVTQUW^ZzBVRSBbF)l-IZE#^@bY)~yb5vns"
    b"Y-JKP3Jqy)WMz0?V_|e-XmxNH3Lpb03o;%qZDnnDVQemDZ*py6bS`!=E=g`=Wq3njbYp0Ba1uNU7I$)KbY*g1V{dL|X=h(#WoBV@Y;<!N3m^k1"
    b"3o;xoZDnnDVQemDZ*py6bS`!=E>m=JX>MmwVQF#_Aqo_2VQFr3VQFq(VQg$)X>Md?cx7`K3?Kn02uJ~l0Rci23K3svZft38WnXh{VQ_P3Z*+4)"
    b"7YY?$ZDDC{bYW?3Utw%)UukY+Wq4(CVg_(>Z**@n"
)
_POOL = descriptor_pool.DescriptorPool()  # our own: no other file of this name can be in the way
_POOL.AddSerializedFile(b85decode(DESCRIPTOR_BYTES))

for _name in _POOL.FindFileByName("mem_wal.proto").message_types_by_name:
    globals()[_name] = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"memwal.format.v1.{_name}"))
