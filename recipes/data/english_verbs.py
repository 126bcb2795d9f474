"""English verbs: five inflected forms of each of the common ones, written out here.

The spelling rules of regular inflection are the few functions after the lists.  What the rules cannot know is marked
in the lists: which longer verbs double their last consonant (``regret``), which keep a silent e (``singe``), and which
verbs are irregular (``draw``).  American spelling.

    python -m recipes.data.english_verbs > english_verbs.tsv

writes the table, a line for each form.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

TAGS = ("V;NFIN", "V;3;SG;PRS", "V;V.PTCP;PRS", "V;PST", "V;V.PTCP;PST")

Forms = tuple[str, ...]
Row = tuple[str, str, str]

# Irregular verbs, one to a line: lemma, past, past participle; after the colon, prefixes that make a verb
# inflected in the same way (with-draw, with-drew, with-drawn).
IRREGULAR = """
    bear bore borne: for over
    beat beat beaten: brow
    begin began begun
    bend bent bent: un
    beseech besought besought
    bet bet bet
    bid bid bid: out over re under
    bind bound bound: re spell un
    bite bit bitten: back
    bleed bled bled
    blow blew blown
    break broke broken: house
    breed bred bred: cross in inter out
    bring brought brought
    build built built: over re
    burst burst burst
    buy bought bought: over re
    cast cast cast: broad fore mis narrow pod re simul sports tele type web
    catch caught caught
    choose chose chosen
    cling clung clung
    come came come: be over
    cost cost cost
    creep crept crept
    cut cut cut: cross inter re under
    deal dealt dealt: mis
    dig dug dug
    do did done: out over re un
    draw drew drawn: out over re with
    drink drank drunk
    drive drove driven
    dwell dwelt dwelt
    eat ate eaten: over under
    fall fell fallen: be
    feed fed fed: breast over under
    feel felt felt
    fight fought fought: out
    find found found
    flee fled fled
    fling flung flung
    fly flew flown: out over
    forbid forbade forbidden
    forsake forsook forsaken
    freeze froze frozen: re un
    get got gotten: be for
    give gave given: for
    go went gone: for under
    grind ground ground: re
    grow grew grown: out over re
    hang hung hung: over re
    have had had
    hear heard heard: mis over re
    hew hewed hewn
    hide hid hidden
    hit hit hit
    hold held held: be up with
    hurt hurt hurt
    keep kept kept
    kneel knelt knelt
    know knew known: fore
    lay laid laid: in mis over under way
    lead led led: mis
    leave left left
    lend lent lent
    let let let: sub
    lie lay lain: over under
    light lit lit: back re
    lose lost lost
    make made made: re un
    mean meant meant
    meet met met
    pay paid paid: over pre re under
    prove proved proven
    put put put: in out
    quit quit quit
    read read read: mis proof re
    rend rent rent
    rid rid rid
    ride rode ridden: out over
    ring rang rung
    rise rose risen: a
    run ran run: fore out over re
    say said said: gain un
    see saw seen: fore over un
    seek sought sought
    sell sold sold: out over re under
    send sent sent: re
    set set set: be in off pre re type up
    sew sewed sewn: re
    shake shook shaken
    shear sheared shorn
    shed shed shed
    shine shone shone: out
    shoe shod shod
    shoot shot shot: out over re trouble under
    show showed shown
    shrink shrank shrunk
    shut shut shut
    sing sang sung
    sink sank sunk
    sit sat sat: baby
    slay slew slain
    sleep slept slept: over
    slide slid slid: back
    sling slung slung
    slink slunk slunk
    slit slit slit
    smite smote smitten
    sow sowed sown
    speak spoke spoken: be mis
    speed sped sped
    spend spent spent: mis out over under
    spin spun spun
    spit spat spat
    split split split
    spread spread spread: over
    spring sprang sprung
    stand stood stood: misunder under with
    steal stole stolen
    stick stuck stuck: un
    sting stung stung
    stink stank stunk
    strew strewed strewn: be
    stride strode stridden: be
    strike struck struck
    string strung strung: ham re un
    strive strove striven
    swear swore sworn: for
    sweep swept swept
    swell swelled swollen
    swim swam swum
    swing swung swung
    take took taken: be mis over par re under
    teach taught taught: re
    tear tore torn
    tell told told: fore re
    think thought thought: be out over re
    throw threw thrown: over
    thrust thrust thrust
    tread trod trodden
    wake woke woken: a
    wear wore worn: out
    weave wove woven: inter re un
    wed wed wed
    weep wept wept
    wet wet wet
    win won won
    wind wound wound: re un
    wring wrung wrung
    write wrote written: co ghost hand over re type under
"""

# Verbs of more than one syllable that double their last consonant, irregular ones (begin) included.
DOUBLED = """
    abet abhor abut acquit admit allot annul aver backlog backstab bedim befit begin besot bobsled bootleg
    commit compel concur confer control debar debug defer defog demur deter diagram disbar disinter dispel
    eavesdrop embed emit entrap enwrap equip excel expel extol forbid format handicap hobnob humbug impel
    incur infer inter intermit jitterbug kidnap kneecap leapfrog manumit nonplus occur omit outfit outstrip
    outwit overlap overstep patrol permit prefer program propel readmit rebel rebut recap recommit recur refer
    refit reformat regret remap remit repel replan retrofit sandbag sidestep submit transfer transmit
    transship unbar uncap unclog underpin unpin unplug unwrap unzip waterlog worship zigzag
"""

# All other regular verbs.
REGULAR = """
    abandon abate abbreviate abdicate abduct abide abolish abort abound abrade abridge absolve absorb abstain
    abstract abuse accelerate accent accentuate accept acclaim acclimate accommodate accompany accomplish
    accord accost account accredit accrue accumulate accuse accustom ache achieve acknowledge acquaint
    acquiesce acquire act activate actualize adapt add address adhere adjoin adjourn adjudicate adjust
    administer admire admonish adopt adore adorn adulterate advance advertise advise advocate aerate affect
    affiliate affirm affix afflict afford age aggravate aggregate agitate agonize agree aid ail aim air alarm
    alert alienate alight align allay allege alleviate allocate allow alloy allude ally alphabetize alter
    alternate amalgamate amass amaze amble ambush amend amortize amount amplify amputate amuse analyze anchor
    anger angle animate annex annihilate annotate announce annoy anoint answer antagonize anticipate apologize
    appall appeal appear appease append applaud apply appoint apportion appraise appreciate apprehend approach
    appropriate approve approximate arbitrate arc arch argue arm arouse arraign arrange array arrest arrive
    articulate ascend ascertain ascribe ask asphyxiate aspire assail assassinate assault assemble assent
    assert assess assign assimilate assist associate assuage assume assure astonish astound atone atrophy
    attach attack attain attempt attend attest attract attribute auction audit audition augment authenticate
    author authorize autograph automate avenge average avert avoid avow await awaken award

    babble back backfire backpack backpedal backtrack badger baffle bag bait bake balance balk balloon ballot
    bamboozle ban band bandage bang banish bank bankrupt banter baptize bar barbecue bare barge bark barrage
    barrel barricade barter base bash bask bat bathe batter battle bawl beam beautify beckon bedazzle bedevil
    beep befriend befuddle beg behave behead belabor belch belie believe belittle bellow belong belt bemoan
    bemuse benefit bequeath berate bereave besiege besmirch bestow betray better bewilder bewitch bias bicker
    bike bill billow binge blab blabber blacken blackmail blame blanch blanket blare blaspheme blast blaze
    bleach bleat blemish blend bless blight blind blindfold blink blister blitz bloat block blockade blog
    bloom blossom blot bluff blunder blunt blur blurt blush board boast bob boggle boil bolster bolt bomb
    bombard bond boo book boom boost boot border bore borrow boss botch bother bottle bounce bound bow bowl
    box boycott brace brag braid brainstorm brainwash brake branch brand brandish brave brawl bray breach
    breathe breeze brew bribe bridge bridle brief brighten bristle broach broaden broil brood browse bruise
    brush brutalize bubble buck buckle bud budge budget buff buffer buffet bug bulge bulldoze bully bump bunch
    bundle bungle burden burglarize burn burnish burp burrow bury bustle busy butcher butt butter button
    buttress buzz bypass

    cackle cage cajole calcify calculate calibrate call calm camouflage camp campaign cancel canoe canonize
    canvass cap capitalize capitulate capsize caption captivate capture caramelize care caress caricature
    carpet carry cart carve cascade cash castigate catalog catalyze catapult categorize cater caucus caulk
    cause caution cave caw cease cede celebrate cement censor censure center centralize certify chafe chain
    chair challenge champion change channel chant chap char characterize charge charm chart charter chase
    chasten chastise chat chatter chauffeur cheapen cheat check cheer cherish chew chide chill chime chip
    chirp chisel choke chomp chop chortle christen chronicle chuck chuckle chug churn circle circulate
    circumscribe circumvent cite civilize claim clamber clamor clamp clank clap clarify clash clasp classify
    clatter claw clean cleanse clear clench click climb clinch clink clip cloak clock clog clone close clothe
    cloud clown club cluck clump cluster clutch clutter coach coagulate coalesce coast coat coax cobble coddle
    code codify coerce coexist cohere coil coin coincide collaborate collapse collate collect collide colonize
    color comb combat combine combust comfort command commandeer commemorate commence commend comment
    commercialize commiserate commission communicate commute compare compensate compete compile complain
    complement complete complicate compliment comply compose compound comprehend compress comprise compromise
    compute conceal concede conceive concentrate conceptualize concern conclude concoct condemn condense
    condescend condition condone conduct confess confide configure confine confirm confiscate conflict conform
    confound confront confuse congeal congratulate congregate conjecture conjugate conjure connect connive
    connote conquer consecrate consent conserve consider consign consist console consolidate consort conspire
    constitute constrain constrict construct construe consult consume contact contain contaminate contemplate
    contend contest continue contort contract contradict contrast contravene contribute contrive convene
    converge converse convert convey convict convince convoke convulse coo cook cool cooperate coordinate cope
    copy copyright corner correct correlate correspond corroborate corrode corrupt cough counsel count counter
    counteract counterfeit couple court cover covet cower crack crackle cradle cram cramp crane crank crash
    crate crave crawl creak crease create credit cremate crest cringe crinkle cripple criticize critique croak
    crochet crop cross crouch crowd crown cruise crumble crumple crunch crusade crush cry crystallize cuddle
    cuff cull culminate cultivate cup curb curdle cure curl curry curse curtail curtsy curve cushion customize
    cycle

    dab dabble dam damage damn dampen dance dangle dare darken darn dart dash date daub daunt dawdle dawn
    daydream daze dazzle deaden deafen debase debate debilitate debrief debunk debut decay deceive decelerate
    decentralize decide decimate decipher deck declaim declare declassify decline decode decompose decorate
    decrease decree decry dedicate deduce deduct deem deepen deface defame default defeat defect defend define
    deflate deflect deform defraud defray defrost defuse defy degenerate degrade dehydrate deify delay
    delegate delete deliberate delight delineate deliver delude deluge delve demand demean democratize
    demolish demonstrate demoralize demote demystify denigrate denote denounce dent deny depart depend depict
    deplete deplore deploy deport depose deposit deprecate depreciate depress deprive deputize derail deride
    derive descend describe desecrate desert deserve design designate desire desist despair despise
    destabilize destroy detach detail detain detect deteriorate determine detest dethrone detonate detour
    detoxify detract devalue devastate develop deviate devise devolve devote devour diagnose dial dictate die
    differ differentiate diffuse digest digitize dignify digress dilate dilute dim diminish dine dip direct
    disable disabuse disagree disallow disappear disappoint disapprove disarm disassemble disavow disband
    disburse discard discern discharge discipline disclaim disclose discolor disconnect discontinue discount
    discourage discover discredit discriminate discuss disdain disembark disembowel disengage disentangle
    disfigure disgrace disguise disgust dish dishearten dishevel dishonor disinfect disinherit disintegrate
    dislike dislocate dislodge dismantle dismay dismember dismiss dismount disobey disorient disown disparage
    dispatch dispense disperse displace display displease dispose disprove dispute disqualify disregard
    disrobe disrupt dissatisfy dissect disseminate dissent dissipate dissociate dissolve dissuade distance
    distill distinguish distort distract distress distribute distrust disturb ditch dive diverge diversify
    divert divest divide divorce divulge dock doctor document dodge dogmatize dominate don donate doodle doom
    dose dot double doubt douse downgrade download downplay doze draft drag drain dramatize drape drawl dread
    dream dredge drench dress dribble drift drill drip drizzle drone drool droop drop drown drum dry dub duck
    duel dull dump dunk dupe duplicate dust dwarf dwindle dye

    earmark earn ease echo eclipse economize edge edify edit educate efface effect eject elaborate elapse
    elbow elect electrify electrocute elevate elicit eliminate elongate elope elucidate elude emanate
    emancipate embalm embargo embark embarrass embellish embezzle embitter emblazon embody embolden emboss
    embrace embroider embroil emerge emigrate emote empathize emphasize employ empower empty emulate enable
    enact enamel enchant encircle enclose encode encompass encounter encourage encroach encrypt encumber end
    endanger endear endeavor endorse endow endure energize enforce engage engender engineer engrave engross
    engulf enhance enjoin enjoy enlarge enlighten enlist enliven enrage enrapture enrich enroll enshrine
    enslave ensue ensure entail entangle enter entertain enthrall enthuse entice entitle entomb entrance
    entreat entrench entrust entwine enumerate enunciate envelop envisage envision envy equal equalize equate
    eradicate erase erect erode err erupt escalate escape escort espouse establish estimate estrange etch
    evacuate evade evaluate evaporate evict evoke evolve exacerbate exaggerate exalt examine exasperate
    excavate exceed excerpt exchange excite exclaim exclude excommunicate excrete excuse execute exemplify
    exempt exercise exert exhale exhaust exhibit exhilarate exhort exhume exile exist exit exonerate exorcise
    expand expect expedite expend experience experiment expire explain explode exploit explore export expose
    expound express expunge extend exterminate extinguish extort extract extradite extrapolate extricate
    extrude exude exult eye

    fabricate face facilitate factor fade fail faint fake falsify falter familiarize fan fancy farm fascinate
    fashion fast fasten fathom fatigue fatten fault favor fawn fax faze fear feast feature feign fell fence
    fend ferment ferry fertilize fester festoon fetch feud fib fiddle fidget field figure file fill film
    filter finalize finance fine finish fire fish fit fix fizz fizzle flag flail flake flank flap flare flash
    flatten flatter flaunt flavor fleece flex flick flicker flinch flip flirt flit float flock flog flood flop
    flounder flourish flout flow fluctuate flunk flush fluster flutter foam focus fog foil foist fold follow
    foment fondle fool forage force foreclose foreshadow forestall forewarn forfeit forge fork form formalize
    formulate fortify foster foul found fracture fragment frame fraternize fray free frequent fret frighten
    frisk frolic front frost froth frown frustrate fry fudge fuel fulfill fumble fume fumigate function fund
    funnel furnish furrow fuse fuss

    gab gag gain gallop galvanize gamble gape garble garden gargle garner garnish gas gash gasp gather gauge
    gawk gaze gear generalize generate germinate gesticulate gesture giggle gild gird glamorize glance glare
    glaze gleam glean glide glimmer glimpse glint glisten glitter gloat glorify glow glower glue glut gnarl
    gnash gnaw goad gobble gossip gouge govern grab grace grade graduate graft grant grapple grasp grate
    gratify gravitate graze grease greet grieve grill grimace grin grip gripe groan groom grope ground group
    grovel growl grumble grunt guarantee guard guess guffaw guide gulp gurgle gush gut guzzle gyrate

    hack haggle hail halt halve hammer hamper hand handcuff handle harangue harass harbor harden harm
    harmonize harness harp harpoon harry harvest hassle hasten hatch hate haul haunt head heal heap heat heave
    heckle hedge heed heighten help hem herald herd hesitate hibernate hiccup highlight hijack hike hinder
    hinge hint hire hiss hitch hitchhike hoard hobble hoe hog hoist holler hone honk honor hoodwink hook hoot
    hop hope horrify hose hospitalize host hound house hover howl huddle hug hum humble humidify humiliate
    humor hunch hunger hunt hurdle hurl hurry hurtle hush hustle hydrate hyphenate hypnotize hypothesize

    ice idealize identify idle idolize ignite ignore illuminate illustrate imagine imbibe imbue imitate
    immerse immigrate immobilize immortalize immunize impair impale impart impeach impede imperil impersonate
    impinge implant implement implicate implode implore imply import impose impound impoverish impregnate
    impress imprint imprison improve improvise inaugurate incapacitate incarcerate inch incinerate incite
    incline include inconvenience incorporate increase incriminate incubate inculcate indemnify indent index
    indicate indict induce induct indulge infect infest infiltrate inflame inflate inflict influence inform
    infringe infuriate infuse ingest ingratiate inhabit inhale inherit inhibit initial initialize initiate
    inject injure innovate inoculate inquire inscribe insert insinuate insist inspect inspire install
    instigate instill institute instruct insulate insult insure integrate intend intensify interact intercede
    intercept interchange interest interfere interject interlace interlock intermingle internalize interpret
    interrogate interrupt intersect intersperse intertwine intervene interview intimidate intoxicate intrigue
    introduce intrude inundate invade invalidate invent invert invest investigate invigorate invite invoice
    invoke involve iron irrigate irritate isolate issue itch itemize iterate

    jab jabber jail jam jangle jar jeer jeopardize jerk jest jet jettison jiggle jilt jingle jockey jog join
    joke jolt jostle jot journey joust judge juggle jumble jump justify jut juxtapose

    keel key kick kid kill kindle kiss knead knee knife knight knit knock knot

    label labor lace lack ladle lag lament laminate lampoon land languish lap lapse lash last latch lather
    laud laugh launch launder lavish leak lean leap learn lease lecture leer legalize legislate legitimize
    lengthen lessen level levitate levy liberalize liberate license lick lift liken limit limp line linger
    link liquefy liquidate lisp list listen litigate litter live load loaf loan loathe lob lobby localize
    locate lock lodge log loiter long look loom loop loosen loot lounge love lower lubricate lug lull lump
    lunge lurch lure lurk

    magnetize magnify mail maim maintain malfunction malign manage mandate maneuver mangle manicure manifest
    manipulate manufacture map mar march marginalize marinate mark market maroon marry marshal marvel mash
    mask masquerade massacre massage master match mate materialize mature maul maximize measure mechanize
    meddle mediate meditate mellow melt memorize menace mend mention mentor merge merit mesh mesmerize migrate
    milk mimic mince mind mine mingle minimize minister mirror misbehave miscalculate misconstrue misdirect
    misfire misinform misinterpret misjudge mislabel mismanage misplace mispronounce misquote misrepresent
    miss misspell mistreat mistrust misuse mitigate mix moan mob mobilize mock model moderate modernize modify
    modulate moisten mold molest monitor monopolize moo mop mope mortgage mortify motion motivate mount mourn
    move mow muddle muddy muffle mug multiply mumble munch murder murmur muse muster mutate mute mutilate
    mutter muzzle mystify

    nab nag nail name nap narrate narrow nationalize nauseate navigate necessitate need needle negate neglect
    negotiate nestle net neutralize nibble nickname nip nod nominate normalize notarize notch note notice
    notify nourish nudge nullify numb number nurse nurture nuzzle

    obey obfuscate object obligate oblige obliterate obscure observe obsess obstruct obtain occupy offend
    offer officiate offload ooze open operate oppose oppress opt optimize orbit orchestrate ordain order
    organize orient originate ornament oscillate ossify ostracize oust outclass outlast outlaw outline outlive
    outmaneuver outnumber outpace outperform outrage outrank outsmart outsource outweigh overburden overcharge
    overcook overcrowd overdose overestimate overflow overhaul overheat overload overlook overpower overrate
    overreact overrule overshadow overstate overstay overturn overuse overwhelm overwork owe own oxidize

    pace pacify pack package pad paddle page paint pair palpitate pamper pan pander panic pant parachute
    parade parallel paralyze paraphrase parcel parch pardon park parody parole parrot parry part participate
    partition pass paste pasteurize pat patch patent patronize pause pave paw pawn peak peck pedal peddle pee
    peek peel peep peer peg pelt pen penalize pencil penetrate perceive perch percolate perfect perforate
    perform perfume perish permeate perpetrate perpetuate perplex persecute persevere persist personalize
    personify perspire persuade perturb peruse pervade pervert pester pet petition petrify philosophize phone
    photocopy photograph phrase pick picket pickle picnic picture pierce pile pilfer pillage pilot pin pinch
    pine pinpoint pioneer pique pirouette pitch pity pivot placate place plague plan plant plaster plate play
    plead please pledge plod plop plot plow pluck plug plummet plunder plunge ply poach pocket point poison
    poke polarize police polish politicize poll pollinate pollute ponder pool pop popularize populate pore
    portray pose posit position possess post postpone postulate pounce pound pour pout powder practice praise
    prance prattle pray preach precede precipitate preclude predate predict predispose predominate preen
    preface prejudge preoccupy prepare prescribe present preserve preside press pressure presume pretend
    prevail prevent preview prey price prick primp print prioritize privatize probe process proclaim
    procrastinate procure prod produce profess proffer profit prohibit project proliferate prolong promise
    promote prompt pronounce prop propagate prophesy propose prosecute prosper protect protest protrude
    provide provoke prowl prune pry publicize publish pucker puff pull pulsate pulverize pummel pump pun punch
    punctuate puncture punish purchase purge purify purport purr pursue push puzzle

    quack qualify quantify quarantine quarrel quash quaver quell quench query question queue quibble quicken
    quiet quilt quip quiver quiz quote

    race radiate radio raffle rage raid rain raise rake rally ram ramble rampage ransack ransom rap rasp rate
    ratify ration rationalize rattle ravage rave raze reach react reactivate readjust reaffirm realign realize
    reap reappear reapply rear rearrange reason reassess reassign reassure reawaken rebuff rebuke recall
    recede receive recharge recite reckon reclaim recline recognize recoil recommend reconcile reconnect
    reconsider reconstruct reconvene record recount recoup recover recreate recruit rectify recuperate recycle
    redden redeem redefine redesign redirect rediscover redistribute reduce reek reenact referee refill refine
    reflect refocus reform refrain refresh refrigerate refuel refund refurbish refuse refute regain regard
    regenerate register regulate rehabilitate rehearse reheat reign reimburse reinforce reinstate reinvent
    reiterate reject rejoice rejoin rejuvenate rekindle relapse relate relax relay release relegate relent
    relieve relinquish relish relive reload relocate rely remain remark remarry remedy remember remind
    reminisce remodel remove rename render renege renew renounce renovate rent reopen reorganize repair
    repatriate repeal repeat repent rephrase replace replay replenish replicate reply report repose repossess
    represent repress reprieve reprimand reprint reproach reproduce repudiate repulse request require rescind
    rescue research resemble resent reserve reshape reside resign resist resolve resonate resort respect
    respond rest restart restate restore restrain restrict restructure result resume resurface resurrect
    resuscitate retain retaliate retie retire retort retouch retrace retract retrain retreat retrieve return
    reunite reuse rev reveal revel reverberate revere reverse revert review revile revise revisit revitalize
    revive revoke revolt revolutionize revolve reward rework rhyme ricochet riddle ridicule rig rinse riot rip
    ripen ripple risk rival rivet roam roar roast rob rock roll romanticize romp roost root rope rot rotate
    rouse rout route row rub ruffle ruin rule rumble ruminate rummage rupture rush rust rustle

    sabotage sacrifice sadden saddle safeguard sag sail salivate salt salute salvage sample sanctify sanction
    sand sandwich sap satirize satisfy saturate saunter save savor saw scald scale scam scamper scan scar
    scare scatter scavenge schedule scheme scoff scold scoop scoot scorch score scorn scour scout scowl
    scramble scrap scrape scratch scrawl scream screech screen screw scribble scrub scrutinize scuff scuffle
    sculpt scurry scuttle seal sear search season seat secede seclude secrete section secure sedate seduce
    seep seethe segment segregate seize select sense sentence separate serenade serve service settle sever
    shackle shade shadow shampoo shape share sharpen shatter shave shell shelter shelve shepherd shield shift
    shimmer ship shirk shiver shock shop shorten shoulder shout shove shovel shower shred shriek shrivel
    shroud shrug shudder shuffle shun shuttle sicken sidetrack sift sigh sign signal signify silence simmer
    simplify simulate sin singe sip siphon situate size sizzle skate sketch skewer ski skid skim skimp skin
    skip skirmish skirt skulk slacken slam slander slant slap slash slaughter slice slim slip slither slobber
    slop slope slosh slouch slow slug slump slur smack smash smear smell smile smirk smoke smolder smooth
    smother smudge smuggle snack snag snap snare snarl snatch sneak sneer sneeze sniff sniffle snip snivel
    snoop snooze snore snort snow snub snuggle soak soap soar sob sober socialize soften soil solicit solidify
    solve soothe sort sound sour space span spank spar spare spark sparkle spawn spear specialize specify
    speculate spell spice spike spill spiral splash splatter splinter splurge spoil sponge sponsor spot sprain
    sprawl spray sprinkle sprint sprout spur spurn spurt sputter spy squabble squander square squash squat
    squawk squeak squeal squeeze squelch squint squirm squirt stab stabilize stack staff stage stagger
    stagnate stain stake stalk stall stammer stamp stampede standardize staple star starch stare start startle
    starve stash state station stay steady steam steep steer stem stencil step sterilize stew stiffen stifle
    stigmatize stimulate stipulate stir stitch stock stockpile stoke stomach stomp stoop stop store storm stow
    straddle straggle straighten strain strand strangle strap stray streak stream streamline strengthen stress
    stretch strip stroke stroll structure struggle strum strut stub study stuff stumble stump stun stunt
    stupefy stutter style subdivide subdue subject submerge subscribe subside subsidize subsist substantiate
    substitute subtract subvert succeed succumb sue suffer suffice suffocate suggest suit sulk sully sum
    summarize summon sunbathe superimpose supersede supervise supplant supplement supply support suppose
    suppress surf surface surge surmise surmount surpass surprise surrender surround survey survive suspect
    suspend sustain swab swagger swallow swamp swap swarm swat sway sweat sweeten swerve swindle swirl swish
    switch swivel swoon swoop symbolize sympathize sync synchronize synthesize

    tabulate tack tackle tag tail tailor taint talk tally tame tamper tan tangle tantalize tap tape taper
    target tarnish taste tattoo taunt tax taxi tease tee teem telegraph telephone televise temper tempt tend
    tender terminate terrify terrorize test testify thank thatch thaw theorize thicken thin thrash threaten
    thrill thrive throb throng throttle thud thump thunder thwart tick ticket tickle tidy tie tighten tilt
    time tinge tingle tinker tint tip tiptoe tire toast toddle toil tolerate toll tone top topple torch
    torment torpedo torture toss total totter touch toughen tour tout tow tower toy trace track trade trail
    train tramp trample tranquilize transact transcend transcribe transfix transform transgress translate
    transpire transplant transport transpose trap travel traverse treasure treat treble trek tremble trespass
    trick trickle trigger trim trip triple triumph trivialize trot trouble trounce trudge trumpet trust try
    tuck tug tumble tune tunnel turn tutor tweak twinkle twirl twist twitch type typify tyrannize

    unbutton uncover underestimate underline undermine underrate underscore undulate unearth unfold unhinge
    unify unite unleash unload unlock unmask unnerve unpack unravel unroll unscrew unsettle untangle untie
    unveil update upgrade uplift upload uproot urge use usher usurp utilize utter

    vacate vacation vaccinate vacillate vacuum validate value vandalize vanish vanquish vaporize varnish vary
    vault veer vegetate veil venerate vent ventilate venture verbalize verge verify vet veto vex vibrate
    victimize vie view vilify vindicate violate visit visualize vocalize voice void volunteer vomit vote vouch
    vow voyage

    waddle wade waft wag wage wager wail wait waive walk wallop wallow waltz wander wane want warble ward warm
    warn warp warrant wash waste watch water wave waver wax weaken wean weather weed weigh welcome weld whack
    wheedle wheel wheeze whet whimper whine whip whirl whisk whisper whistle whiten whittle whiz whoop widen
    wield wiggle wilt wince wink winnow wipe wire wish wither witness wobble wonder woo work worry worsen
    wound wrangle wrap wreak wreck wrench wrest wrestle wriggle wrinkle writhe wrong

    yank yap yawn yearn yell yelp yield yodel

    zero zip zoom
"""

# Verbs that keep a silent e before -ing, so as not to be read with a hard g or as another verb.
KEPT_E = frozenset({"binge", "singe", "tinge"})

# Third persons that no rule gives.
THIRD_SINGULAR = {"have": "has", "stomach": "stomachs"}

# One syllable ending in a single vowel and a single consonant other than w, x, y; qu counts as a consonant.
SHORT = re.compile(r"(?:qu|[^aeiou])*[aeiou][bdfgklmnprstvz]")

DOUBLED_VERBS = frozenset(DOUBLED.split())


def before_vowel(verb: str) -> str:
    """Return the verb as spelled before -ing, -ed and -es: regret-t-ing, panic-k-ed, quiz-z-es."""
    if verb in DOUBLED_VERBS or SHORT.fullmatch(verb):
        return verb + verb[-1]
    if re.search(r"[aeiou]c$", verb):
        return verb + "k"
    return verb


def third_singular(verb: str) -> str:
    """Return the third person singular present: visits, watches, tries, goes."""
    if verb in THIRD_SINGULAR:
        return THIRD_SINGULAR[verb]
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ies"
    if re.search(r"(?:s|x|z|ch|sh|[^aeiou]o)$", verb):
        return before_vowel(verb) + "es"
    return verb + "s"


def present_participle(verb: str) -> str:
    """Return the present participle: visiting, hoping, agreeing, dying, stopping."""
    if verb in KEPT_E or re.search(r"[eoy]e$", verb):
        return verb + "ing"
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e"):
        return verb[:-1] + "ing"
    return before_vowel(verb) + "ing"


def regular_past(verb: str) -> str:
    """Return the regular past, which is the past participle too: visited, hoped, tried, stopped."""
    if verb.endswith("e"):
        return verb + "d"
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    return before_vowel(verb) + "ed"


def regular_forms(verb: str) -> Forms:
    """Return the five forms of a regular verb, in the order of ``TAGS``."""
    past = regular_past(verb)
    return verb, third_singular(verb), present_participle(verb), past, past


def irregular_verbs() -> list[Forms]:
    """Return the five forms of each verb of ``IRREGULAR``, the prefixed ones included."""
    verbs = []
    for line in IRREGULAR.strip().splitlines():
        parts, _, prefixes = line.partition(":")
        verb, past, participle = parts.split()
        forms = (verb, third_singular(verb), present_participle(verb), past, participle)
        for prefix in ("", *prefixes.split()):
            verbs.append(tuple(prefix + form for form in forms))
    return verbs


def regular_verbs() -> list[Forms]:
    """Return the five forms of each regular verb; a verb of ``DOUBLED`` may be irregular (``begin``)."""
    irregular = {forms[0] for forms in irregular_verbs()}
    doubled = [verb for verb in DOUBLED.split() if verb not in irregular]
    return [regular_forms(verb) for verb in doubled + REGULAR.split()]


def all_verbs() -> list[Forms]:
    """Return the five forms of every verb, sorted by lemma; a verb listed twice is an error."""
    verbs = sorted(irregular_verbs() + regular_verbs())
    for one, other in pairwise(verbs):
        if one[0] == other[0]:
            raise ValueError(f"listed twice: {one[0]}")
    return verbs


@lru_cache(maxsize=1)
def rows() -> list[Row]:
    """Return lemma, form and tags of every form, the verbs sorted and the forms of each in the order of ``TAGS``."""
    return [(forms[0], form, tags) for forms in all_verbs() for form, tags in zip(forms, TAGS, strict=True)]


if __name__ == "__main__":
    for row in rows():
        print(*row, sep="\t")
