$( Propositional calculus for math/metamath-v0: implication and negation, three axioms and modus ponens, and lemmas.
   Labels are those that Metamath users know; the proofs were made for this file. License: Apache-2.0. $)

$c ( ) -> -. wff |- $.
$v ph ps ch th ta et ze si rh mu $.
wph $f wff ph $.
wps $f wff ps $.
wch $f wff ch $.
wth $f wff th $.
wta $f wff ta $.
wet $f wff et $.
wze $f wff ze $.
wsi $f wff si $.
wrh $f wff rh $.
wmu $f wff mu $.

wn $a wff -. ph $.
wi $a wff ( ph -> ps ) $.

${
  min $e |- ph $.
  maj $e |- ( ph -> ps ) $.
  $( Modus ponens, or detachment. $)
  ax-mp $a |- ps $.
$}

ax-1 $a |- ( ph -> ( ps -> ph ) ) $.
ax-2 $a |- ( ( ph -> ( ps -> ch ) ) -> ( ( ph -> ps ) -> ( ph -> ch ) ) ) $.
ax-3 $a |- ( ( -. ph -> -. ps ) -> ( ps -> ph ) ) $.

${
  mp2.1 $e |- ph $.
  mp2.2 $e |- ps $.
  mp2.3 $e |- ( ph -> ( ps -> ch ) ) $.
  $( Two detachments. $)
  mp2 $p |- ch $=
    wps wch mp2.2 wph wps wch wi mp2.1 mp2.3 ax-mp ax-mp $.
$}

${
  mp2b.1 $e |- ph $.
  mp2b.2 $e |- ( ph -> ps ) $.
  mp2b.3 $e |- ( ps -> ch ) $.
  $( Two detachments in a chain. $)
  mp2b $p |- ch $=
    wps wch wph wps mp2b.1 mp2b.2 ax-mp mp2b.3 ax-mp $.
$}

${
  a1i.1 $e |- ph $.
  $( Add an antecedent. $)
  a1i $p |- ( ps -> ph ) $=
    wph wps wph wi a1i.1 wph wps ax-1 ax-mp $.
$}

${
  a2i.1 $e |- ( ph -> ( ps -> ch ) ) $.
  $( Distribute an antecedent. $)
  a2i $p |- ( ( ph -> ps ) -> ( ph -> ch ) ) $=
    wph wps wch wi wi wph wps wi wph wch wi wi a2i.1 wph wps wch ax-2 ax-mp $.
$}

${
  mpd.1 $e |- ( ph -> ps ) $.
  mpd.2 $e |- ( ph -> ( ps -> ch ) ) $.
  $( Detachment under an antecedent. $)
  mpd $p |- ( ph -> ch ) $=
    wph wps wi wph wch wi mpd.1 wph wps wch mpd.2 a2i ax-mp $.
$}

${
  mpi.1 $e |- ps $.
  mpi.2 $e |- ( ph -> ( ps -> ch ) ) $.
  $( Detachment of the inner antecedent. $)
  mpi $p |- ( ph -> ch ) $=
    wph wps wch wps wph mpi.1 a1i mpi.2 mpd $.
$}

${
  syl.1 $e |- ( ph -> ps ) $.
  syl.2 $e |- ( ps -> ch ) $.
  $( Implication is transitive. $)
  syl $p |- ( ph -> ch ) $=
    wph wps wch syl.1 wps wch wi wph syl.2 a1i mpd $.
$}

${
  3syl.1 $e |- ( ph -> ps ) $.
  3syl.2 $e |- ( ps -> ch ) $.
  3syl.3 $e |- ( ch -> th ) $.
  $( Three implications in a chain. $)
  3syl $p |- ( ph -> th ) $=
    wph wch wth wph wps wch 3syl.1 3syl.2 syl 3syl.3 syl $.
$}

$( Implication is reflexive. $)
id $p |- ( ph -> ph ) $=
  wph wph wph wi wph wph wph ax-1 wph wph wph wi ax-1 mpd $.

${
  com12.1 $e |- ( ph -> ( ps -> ch ) ) $.
  $( Exchange antecedents. $)
  com12 $p |- ( ps -> ( ph -> ch ) ) $=
    wps wph wps wi wph wch wi wps wph ax-1 wph wps wch com12.1 a2i syl $.
$}

${
  syl5.1 $e |- ( ph -> ps ) $.
  syl5.2 $e |- ( ch -> ( ps -> th ) ) $.
  $( Replace the inner antecedent. $)
  syl5 $p |- ( ch -> ( ph -> th ) ) $=
    wph wch wth wph wps wch wth wi syl5.1 wch wps wth syl5.2 com12 syl com12 $.
$}

${
  syl6.1 $e |- ( ph -> ( ps -> ch ) ) $.
  syl6.2 $e |- ( ch -> th ) $.
  $( Replace the inner consequent. $)
  syl6 $p |- ( ph -> ( ps -> th ) ) $=
    wph wps wch wi wps wth wi syl6.1 wps wch wth wch wth wi wps syl6.2 a1i a2i syl $.
$}

${
  sylc.1 $e |- ( ph -> ps ) $.
  sylc.2 $e |- ( ph -> ch ) $.
  sylc.3 $e |- ( ps -> ( ch -> th ) ) $.
  $( Two implications that meet. $)
  sylc $p |- ( ph -> th ) $=
    wph wch wth sylc.2 wph wps wch wth wi sylc.1 sylc.3 syl mpd $.
$}

${
  pm2.43i.1 $e |- ( ph -> ( ph -> ps ) ) $.
  $( Drop an antecedent that occurs twice. $)
  pm2.43i $p |- ( ph -> ps ) $=
    wph wph wps wph id pm2.43i.1 mpd $.
$}

$( Detachment as a theorem. $)
pm2.27 $p |- ( ph -> ( ( ph -> ps ) -> ps ) ) $=
  wph wps wi wph wps wph wps wi id com12 $.

$( The theorem of pm2.43i. $)
pm2.43 $p |- ( ( ph -> ( ph -> ps ) ) -> ( ph -> ps ) ) $=
  wph wph wps wi wps wph wps pm2.27 a2i $.

$( The theorem of com12. $)
pm2.04 $p |- ( ( ph -> ( ps -> ch ) ) -> ( ps -> ( ph -> ch ) ) ) $=
  wps wph wps wi wph wps wch wi wi wph wch wi wps wph ax-1 wph wps wch ax-2 syl5 $.

$( Put an antecedent before both sides. $)
imim2 $p |- ( ( ph -> ps ) -> ( ( ch -> ph ) -> ( ch -> ps ) ) ) $=
  wph wps wi wch wph wps wi wi wch wph wi wch wps wi wi wph wps wi wch ax-1 wch wph wps ax-2 syl $.

$( Put both sides before a consequent. $)
imim1 $p |- ( ( ph -> ps ) -> ( ( ps -> ch ) -> ( ph -> ch ) ) ) $=
  wps wch wi wph wps wi wph wch wi wps wch wph imim2 com12 $.

${
  imim2i.1 $e |- ( ph -> ps ) $.
  $( The inference of imim2. $)
  imim2i $p |- ( ( ch -> ph ) -> ( ch -> ps ) ) $=
    wch wph wps wph wps wi wch imim2i.1 a1i a2i $.
$}

${
  imim1i.1 $e |- ( ph -> ps ) $.
  $( The inference of imim1. $)
  imim1i $p |- ( ( ps -> ch ) -> ( ph -> ch ) ) $=
    wph wps wi wps wch wi wph wch wi wi imim1i.1 wph wps wch imim1 ax-mp $.
$}

${
  imim12i.1 $e |- ( ph -> ps ) $.
  imim12i.2 $e |- ( ch -> th ) $.
  $( Replace both sides. $)
  imim12i $p |- ( ( ps -> ch ) -> ( ph -> th ) ) $=
    wps wch wi wph wch wi wph wth wi wph wps wch imim12i.1 imim1i wch wth wph imim12i.2 imim2i syl $.
$}

$( From a contradiction anything follows. $)
pm2.21 $p |- ( -. ph -> ( ph -> ps ) ) $=
  wph wn wps wn wph wn wi wph wps wi wph wn wps wn ax-1 wps wph ax-3 syl $.

$( The same with exchanged antecedents. $)
pm2.24 $p |- ( ph -> ( -. ph -> ps ) ) $=
  wph wn wph wps wph wps pm2.21 com12 $.

${
  pm2.21i.1 $e |- -. ph $.
  $( The inference of pm2.21. $)
  pm2.21i $p |- ( ph -> ps ) $=
    wph wn wph wps wi pm2.21i.1 wph wps pm2.21 ax-mp $.
$}

${
  pm2.24i.1 $e |- ph $.
  $( The inference of pm2.24. $)
  pm2.24i $p |- ( -. ph -> ps ) $=
    wph wph wn wps wi pm2.24i.1 wph wps pm2.24 ax-mp $.
$}

${
  con4i.1 $e |- ( -. ph -> -. ps ) $.
  $( The inference of ax-3. $)
  con4i $p |- ( ps -> ph ) $=
    wph wn wps wn wi wps wph wi con4i.1 wph wps ax-3 ax-mp $.
$}

$( What follows from its negation holds. $)
pm2.18 $p |- ( ( -. ph -> ph ) -> ph ) $=
  wph wn wph wi wph wph wn wph wi wph wn wph wn wph wi wn wi wph wn wph wi wph wi wph wn wph wph wn wph wi wn wph
  wph wn wph wi wn pm2.21 a2i wph wph wn wph wi ax-3 syl pm2.43i $.

${
  pm2.18i.1 $e |- ( -. ph -> ph ) $.
  $( The inference of pm2.18. $)
  pm2.18i $p |- ph $=
    wph wn wph wi wph pm2.18i.1 wph pm2.18 ax-mp $.
$}

$( Remove two negations. $)
notnotr $p |- ( -. -. ph -> ph ) $=
  wph wn wn wph wn wph wi wph wph wn wph pm2.21 wph pm2.18 syl $.

$( Add two negations. $)
notnot $p |- ( ph -> -. -. ph ) $=
  wph wn wn wph wph wn notnotr con4i $.

$( Contraposition with a negated consequent. $)
con2 $p |- ( ( ph -> -. ps ) -> ( ps -> -. ph ) ) $=
  wph wps wn wi wph wn wn wps wn wi wps wph wn wi wph wn wn wph wps wn wph notnotr imim1i wph wn wps ax-3 syl $.

${
  con2i.1 $e |- ( ph -> -. ps ) $.
  $( The inference of con2. $)
  con2i $p |- ( ps -> -. ph ) $=
    wph wps wn wi wps wph wn wi con2i.1 wph wps con2 ax-mp $.
$}

$( Contraposition with a negated antecedent. $)
con1 $p |- ( ( -. ph -> ps ) -> ( -. ps -> ph ) ) $=
  wph wn wps wi wph wn wps wn wn wi wps wn wph wi wps wps wn wn wph wn wps notnot imim2i wph wps wn ax-3 syl $.

${
  con1i.1 $e |- ( -. ph -> ps ) $.
  $( The inference of con1. $)
  con1i $p |- ( -. ps -> ph ) $=
    wph wn wps wi wps wn wph wi con1i.1 wph wps con1 ax-mp $.
$}

$( Contraposition. $)
con3 $p |- ( ( ph -> ps ) -> ( -. ps -> -. ph ) ) $=
  wph wps wi wph wps wn wn wi wps wn wph wn wi wps wps wn wn wph wps notnot imim2i wph wps wn con2 syl $.

${
  con3i.1 $e |- ( ph -> ps ) $.
  $( The inference of con3. $)
  con3i $p |- ( -. ps -> -. ph ) $=
    wph wps wi wps wn wph wn wi con3i.1 wph wps con3 ax-mp $.
$}

$( What implies its negation is false. $)
pm2.01 $p |- ( ( ph -> -. ph ) -> -. ph ) $=
  wph wph wn wi wph wn wn wph wn wi wph wn wph wn wn wph wph wn wph notnotr imim1i wph wn pm2.18 syl $.

${
  pm2.61i.1 $e |- ( ph -> ps ) $.
  pm2.61i.2 $e |- ( -. ph -> ps ) $.
  $( Proof by cases. $)
  pm2.61i $p |- ps $=
    wps wps wn wph wn wps wph wps pm2.61i.1 con3i pm2.61i.2 syl pm2.18i $.
$}

${
  mto.1 $e |- -. ps $.
  mto.2 $e |- ( ph -> ps ) $.
  $( Modus tollens. $)
  mto $p |- -. ph $=
    wps wn wph wn mto.1 wph wps mto.2 con3i ax-mp $.
$}

${
  pm2.65i.1 $e |- ( ph -> ps ) $.
  pm2.65i.2 $e |- ( ph -> -. ps ) $.
  $( Proof by contradiction. $)
  pm2.65i $p |- -. ph $=
    wph wph wn wi wph wn wph wps wph wn pm2.65i.1 wph wps pm2.65i.2 con2i syl wph pm2.01 ax-mp $.
$}

${
  ja.1 $e |- ( -. ph -> ch ) $.
  ja.2 $e |- ( ps -> ch ) $.
  $( Cases of an implication. $)
  ja $p |- ( ( ph -> ps ) -> ch ) $=
    wph wph wps wi wch wi wph wph wps wi wps wch wph wps pm2.27 ja.2 syl6 wph wn wch wph wps wi wch wi ja.1 wch wph
    wps wi ax-1 syl pm2.61i $.
$}

$( The antecedent of a false implication. $)
simplim $p |- ( -. ( ph -> ps ) -> ph ) $=
  wph wph wps wi wph wps pm2.21 con1i $.

$( The second part of a conjunction. $)
simprim $p |- ( -. ( ph -> -. ps ) -> ps ) $=
  wps wph wps wn wi wps wn wph ax-1 con1i $.

$( Peirce's law. $)
peirce $p |- ( ( ( ph -> ps ) -> ph ) -> ph ) $=
  wph wps wi wph wph wph wps simplim wph id ja $.

$( Exchange of a disjunction. $)
looinv $p |- ( ( ( ph -> ps ) -> ps ) -> ( ( ps -> ph ) -> ph ) ) $=
  wph wps wi wps wi wps wph wi wph wps wi wph wi wph wph wps wi wps wph imim1 wph wps peirce syl6 $.

$( The parts of a conjunction make it. $)
pm3.2im $p |- ( ph -> ( ps -> -. ( ph -> -. ps ) ) ) $=
  wph wph wps wn wi wps wn wi wps wph wps wn wi wn wi wph wps wn pm2.27 wph wps wn wi wps con2 syl $.

${
  jc.1 $e |- ( ph -> ps ) $.
  jc.2 $e |- ( ph -> ch ) $.
  $( Both parts of a conjunction. $)
  jc $p |- ( ph -> -. ( ps -> -. ch ) ) $=
    wph wps wch wps wch wn wi wn jc.1 jc.2 wps wch pm3.2im sylc $.
$}
